//! Numbers that kernels do not have: unsigned integers above 8 bits and 8-bit floats. Expected values are Rust's own arithmetic, and
//! that of the number types of `tensor`, which have tests of their own.

use std::collections::BTreeMap;

use ferroflux::{Options, Program, Tensor};
use ir_core::DType;
use tensor::{Element, F8E4M3, F8E5M2};

const BACKENDS: [&str; 3] = ["cpu", "eager", "oracle"];

/// What a graph of one operator on `%x` (and `%y`) gives on each backend.
fn on_backends(call: &str, inputs: &[Tensor], result: DType) -> Vec<Tensor> {
    let mut text = String::from("fx 1.0\ngraph \"carried\" {\n");
    for (name, t) in ["x", "y"].iter().zip(inputs) {
        text += &format!("  %{name}: {}[{}] = input \"{name}\"\n", t.dtype(), t.numel());
    }
    text += &format!("  %z: {result}[{}] = {call}\n  return %z\n}}\n", inputs[0].numel());
    let program = Program::from_graph(text.parse().unwrap(), &BTreeMap::new()).unwrap();
    let run = |backend: &&str| {
        let model = program
            .compile(&Options::new().backend(*backend))
            .unwrap_or_else(|e| panic!("{call} {backend}: {e}"));
        let out = model.call(inputs).unwrap_or_else(|e| panic!("{call} {backend}: {e}")).remove(0);
        assert_eq!(out.dtype(), result, "{call} {backend}");
        out
    };
    BACKENDS.iter().map(run).collect()
}

fn check<T: Element, R: Element>(call: &str, inputs: &[&[T]], expected: &[R]) {
    let inputs: Vec<Tensor> =
        inputs.iter().map(|v| Tensor::from_vec(v.to_vec(), &[v.len()]).unwrap()).collect();
    for (out, backend) in on_backends(call, &inputs, R::DTYPE).iter().zip(BACKENDS) {
        let same = |(a, b): (&R, &R)| a == b || (a.to_f64().is_nan() && b.to_f64().is_nan());
        let got = out.to_vec::<R>().unwrap();
        assert!(got.iter().zip(expected).all(same), "{call} on {backend}: {got:?}, not {expected:?}");
    }
}

macro_rules! unsigned {
    ($name:ident, $t:ty) => {
        #[test]
        fn $name() {
            const TOP: $t = <$t>::MAX;
            let x: [$t; 8] = [0, 1, 7, TOP / 2, TOP / 2 + 1, TOP - 9, TOP - 1, TOP];
            let y: [$t; 8] = [TOP, 1, 9, TOP / 2 + 1, TOP / 2, 12, 3, TOP];
            let both = |f: fn($t, $t) -> $t| x.iter().zip(&y).map(|(a, b)| f(*a, *b)).collect::<Vec<$t>>();
            let asked = |f: fn(&$t, &$t) -> bool| {
                x.iter().zip(&y).map(|(a, b)| tensor::Bool::from(f(a, b))).collect::<Vec<_>>()
            };
            check("aten.add.Tensor(%x, %y, 1)", &[&x, &y], &both(<$t>::wrapping_add));
            check("aten.mul.Tensor(%x, %y)", &[&x, &y], &both(<$t>::wrapping_mul));
            check("aten.bitwise_xor.Tensor(%x, %y)", &[&x, &y], &both(|a, b| a ^ b));
            check("aten.mul.Scalar(%x, 3)", &[&x], &x.map(|a| a.wrapping_mul(3)));
            check("aten.lt.Tensor(%x, %y)", &[&x, &y], &asked(|a, b| a < b));
            check("aten.ge.Tensor(%x, %y)", &[&x, &y], &asked(|a, b| a >= b));
            check("aten.eq.Tensor(%x, %y)", &[&x, &y], &asked(|a, b| a == b));
            check("aten.maximum.default(%x, %y)", &[&x, &y], &both(<$t>::max));
            check("aten.flip.default(%x, [0])", &[&x], &{
                let mut z = x;
                z.reverse();
                z
            });
            check("aten.to.dtype(%x, f64)", &[&x], &x.map(|a| a as f64));
            check("aten.to.dtype(%x, f32)", &[&x], &x.map(|a| a as f32));
            check("aten.to.dtype(%x, i64)", &[&x], &x.map(|a| a as i64));
            check("aten.to.dtype(%x, i8)", &[&x], &x.map(|a| a as i8));
            check("aten.to.dtype(%x, bool)", &[&x], &x.map(|a| tensor::Bool::from(a != 0)));
            let floats: [f64; 5] = [0.0, 1.9, 200.5, (TOP / 2) as f64, (TOP - TOP / 8) as f64];
            check(
                &format!("aten.to.dtype(%x, {})", <$t as Element>::DTYPE),
                &[&floats],
                &floats.map(|f| f as $t),
            );
            check(
                &format!("aten.to.dtype(%x, {})", <$t as Element>::DTYPE),
                &[&[-1i32, 5]],
                &[-1i32 as $t, 5],
            );
        }
    };
}

unsigned!(unsigned_integers_of_16_bits, u16);
unsigned!(unsigned_integers_of_32_bits, u32);
unsigned!(unsigned_integers_of_64_bits, u64);

#[test]
fn integers_of_16_and_32_bits_divide() {
    let (x, y) = ([65_535u16, 40_000, 9], [2u16, 40_000, 10]);
    let quotients: Vec<u16> = x.iter().zip(y).map(|(a, b)| a / b).collect();
    check("aten.div.Tensor_mode(%x, %y, \"trunc\")", &[&x, &y], &quotients);
    let (x, y) = ([u32::MAX, 3_000_000_000, 9], [2u32, 7, 10]);
    let rests: Vec<u32> = x.iter().zip(y).map(|(a, b)| a % b).collect();
    check("aten.fmod.Tensor(%x, %y)", &[&x, &y], &rests);
}

#[test]
fn quotients_of_64_bits_are_refused_with_the_node() {
    let text = "fx 1.0\ngraph \"q\" {\n  %x: u64[3] = input \"x\"\n  %z: u64[3] = aten.div.Tensor_mode(%x, %x, \"trunc\")\n  return %z\n}\n";
    let program = Program::from_graph(text.parse().unwrap(), &BTreeMap::new()).unwrap();
    let refused = program.compile(&Options::new()).err().unwrap().to_string();
    assert!(refused.contains("`z`") && refused.contains("u64"), "{refused}");
}

/// Numbers of every magnitude, those between two neighbours, and what is beyond.
fn numbers() -> Vec<f32> {
    let mut all = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 464.0, 464.5, 61_440.0, 1e30];
    for p in 0..=255u8 {
        let (a, b) = (F8E4M3(p).to_f32(), F8E5M2(p).to_f32());
        all.extend([a, a * 1.0625, a * 1.07, b, b * 1.125, b * 0.9]);
    }
    all
}

#[test]
fn floats_of_8_bits_are_rounded_and_read_as_their_number_types_do() {
    let x = numbers();
    let e4m3: Vec<F8E4M3> = x.iter().map(|v| F8E4M3::from_f32(*v)).collect();
    let e5m2: Vec<F8E5M2> = x.iter().map(|v| F8E5M2::from_f32(*v)).collect();
    check("aten.to.dtype(%x, f8e4m3)", &[&x], &e4m3);
    check("aten.to.dtype(%x, f8e5m2)", &[&x], &e5m2);
    check("aten.to.dtype(%x, f32)", &[&e4m3], &e4m3.iter().map(|v| v.to_f32()).collect::<Vec<_>>());
    check("aten.to.dtype(%x, f64)", &[&e5m2], &e5m2.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
    check("aten.flip.default(%x, [0])", &[&e4m3], &e4m3.iter().rev().copied().collect::<Vec<_>>());
    let equal: Vec<tensor::Bool> = x.iter().zip(&e4m3).map(|(_, v)| (!v.to_f32().is_nan()).into()).collect();
    check("aten.eq.Tensor(%x, %x)", &[&e4m3], &equal);
}

#[test]
fn bits_are_seen_as_elements_of_another_dtype() {
    let x = [1.5f32, -2.0, f32::INFINITY];
    check("aten.view.dtype(%x, i32)", &[&x], &x.map(|v| v.to_bits() as i32));
    check("aten.view.dtype(%x, u32)", &[&x], &x.map(f32::to_bits));
    check("aten.view.dtype(%x, bf16)", &[&[0x3fc0u16, 0xc000]], &[1.5f32, -2.0].map(tensor::bf16::from_f32));
    check("aten.view.dtype(%x, u8)", &[&[F8E4M3(3), F8E4M3(0x85)]], &[3u8, 0x85]);
}

#[test]
fn bytes_are_joined_and_parted_lowest_first() {
    let model = |text: &str, backend: &str| {
        let program = Program::from_graph(text.parse().unwrap(), &BTreeMap::new()).unwrap();
        program.compile(&Options::new().backend(backend)).unwrap()
    };
    let parted = "fx 1.0\ngraph \"p\" {\n  symbol s0 \"n\" 1..=9\n  %x: i32[s0, 2] = input \"x\"\n  %z: u16[s0, 4] = aten.view.dtype(%x, u16)\n  return %z\n}\n";
    let joined = "fx 1.0\ngraph \"j\" {\n  symbol s0 \"n\" 1..=9\n  %x: u8[2, 4*s0] = input \"x\"\n  %z: f32[2, s0] = aten.view.dtype(%x, f32)\n  return %z\n}\n";
    for backend in BACKENDS {
        let x = Tensor::from_vec(vec![0x0001_8002_i32, -1, 7, 1 << 30], &[2, 2]).unwrap();
        let z = model(parted, backend).call(&[x]).unwrap().remove(0);
        assert_eq!(z.to_vec::<u16>().unwrap(), [0x8002, 1, 0xffff, 0xffff, 7, 0, 0, 1 << 14], "{backend}");
        let numbers = [1.5f32, -3.25, 1e-40, f32::MAX];
        let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        let z = model(joined, backend).call(&[Tensor::from_vec(bytes, &[2, 8]).unwrap()]).unwrap().remove(0);
        assert_eq!((z.sizes(), z.to_vec::<f32>().unwrap()), (&[2, 2][..], numbers.to_vec()), "{backend}");
    }
}

/// State of such a dtype is kept between calls, and weights are bound in their form.
#[test]
fn weights_and_state_have_these_dtypes_too() {
    let text = r#"fx 1.0
graph "state" {
  %x: f32[2] = input "x"
  %w: f8e5m2[2] = parameter "w"
  %n: u32[1] = buffer "n"
  %wide: f32[2] = aten.to.dtype(%w, f32)
  %y: f32[2] = aten.mul.Tensor(%x, %wide)
  %more: u32[1] = aten.add_.Scalar(%n, 2147483648, 1)
  return %y
  return %more
}
"#;
    let w = Tensor::from_vec(vec![F8E5M2::from_f32(1.75), F8E5M2::from_f32(-512.0)], &[2]).unwrap();
    let n = Tensor::from_vec(vec![2_147_483_649_u32], &[1]).unwrap();
    let weights = BTreeMap::from([("w".to_owned(), w), ("n".to_owned(), n)]);
    for backend in BACKENDS {
        let program = Program::from_graph(text.parse().unwrap(), &weights).unwrap();
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        for count in [1u32, 2_147_483_649] {
            let out = model.call(&[Tensor::from_vec(vec![2.0f32, 0.5], &[2]).unwrap()]).unwrap();
            assert_eq!(out[0].to_vec::<f32>().unwrap(), [3.5, -256.0], "{backend}");
            assert_eq!(out[1].to_vec::<u32>().unwrap(), [count], "{backend}");
        }
    }
}
