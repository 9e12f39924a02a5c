//! Every VEX instruction on vectors with many operands, and the scalar instructions that copy single elements, decoded by `iced-x86`.

use iced_x86::{CpuidFeature, Instruction, Register};

use super::super::codes::{self as c, ALL};
use super::super::encode::*;
use super::super::target::Target;
use super::encoding::{assembled_for, decode, registers};

/// What an instruction of `codes` looks like.
struct Form {
    /// The name that the decoder gives the VEX form.
    mnemonic: String,
    /// Whether there is a source between the first and the last operand.
    three: bool,
    imm: Option<u8>,
    /// Bytes of the last operand in memory; `None`: it is a register.
    memory: Option<usize>,
    /// Whether the last operand can be a register.
    register: bool,
}

fn form(name: &str, code: Code) -> Form {
    let plain = name.trim_end_matches("_STORE").trim_end_matches("_FROM");
    let plain = plain.trim_end_matches("_X").trim_end_matches("_Y");
    // Without masks there are no kinds of bits.
    let mnemonic = match plain {
        "VPANDD" | "VPANDQ" => "VPAND",
        "VPORD" | "VPORQ" => "VPOR",
        "VPXORD" | "VPXORQ" => "VPXOR",
        "VPSHIFTD" => "VPSRLD",
        "VPSHIFTQ" => "VPSRLQ",
        other => other,
    };
    let one = ["VSQRT", "VCVT", "VPMOVSX", "VPMOVZX", "VMOV", "VBROADCAST", "VPBROADCAST", "VPABS", "VROUND"];
    let one =
        one.iter().any(|p| plain.starts_with(p)) || matches!(plain, "VPERMQ" | "VPSHUFD" | "VEXTRACTF128");
    let with = [
        "VPSHIFT",
        "VPSHUFD",
        "VCMP",
        "VROUND",
        "VCVTPS2PH",
        "VEXTRACTF128",
        "VINSERTF128",
        "VSHUFPS",
        "VPERMQ",
    ];
    let imm = with.iter().any(|w| plain.starts_with(w)).then_some(3);
    let halved = if code.length == 2 { 2 } else { 1 };
    let fixed = plain.contains("BROADCAST");
    let memory = usize::from(if fixed { code.memory } else { code.memory / halved });
    Form {
        mnemonic: mnemonic.into(),
        three: !one,
        // The fourth register is in the upper half.
        imm: if plain == "VBLENDVPS" { Some(11 << 4) } else { imm },
        memory: (!matches!(plain, "VPSHIFTD" | "VPSHIFTQ" | "VMOVMSKPS")).then_some(memory),
        register: !plain.starts_with("VMASKMOV"),
    }
}

/// The instructions that leaves of 256 bits use.
fn vex() -> impl Iterator<Item = &'static (&'static str, Code)> {
    ALL.iter().filter(|(_, code)| code.avx2)
}

fn whole(bytes: &[u8], name: &str, form: &Form) -> Instruction {
    let i = decode(bytes);
    assert!(!i.is_invalid(), "{name}: {bytes:02x?}");
    assert_eq!(format!("{:?}", i.mnemonic()).to_uppercase(), form.mnemonic, "{bytes:02x?}");
    assert_eq!(i.len(), bytes.len(), "{name}: {bytes:02x?}");
    let old = [CpuidFeature::AVX, CpuidFeature::AVX2, CpuidFeature::FMA, CpuidFeature::F16C];
    assert!(i.cpuid_features().iter().all(|f| old.contains(f)), "{name}: {:?}", i.cpuid_features());
    i
}

/// The length of the registers that are longest.
fn longest(i: &Instruction) -> usize {
    let of = |n| (i.op_kind(n) == iced_x86::OpKind::Register).then(|| i.op_register(n).size());
    (0..i.op_count()).filter_map(of).max().unwrap()
}

#[test]
fn vector_instructions_on_registers() {
    let mut seen = 0;
    for (name, code) in vex() {
        let form = form(name, *code);
        if !form.register {
            continue;
        }
        seen += 1;
        // The digit selects which.
        let firsts: &[u8] = if name.starts_with("VPSHIFT") { &[2] } else { &[0, 1, 6, 7, 8, 13, 15] };
        // The destination is a general register.
        let firsts = if *name == "VMOVMSKPS" { &[RDX, RBX] } else { firsts };
        for &first in firsts {
            for second in if form.three { vec![0, 5, 8, 15] } else { vec![0] } {
                let lasts: &[u8] = if name.ends_with("_FROM") { &[RDX, RSI] } else { &[0, 7, 8, 15] };
                for &last in lasts {
                    let bytes = assembled_for(Target::Avx2, |a| {
                        a.vector(*code, first, second, Rm::Reg(last), form.imm);
                    });
                    let i = whole(&bytes, name, &form);
                    let [first, second, last] = [first, second, last].map(usize::from);
                    let mut want = if form.three { vec![first, second, last] } else { vec![first, last] };
                    if name.starts_with("VPSHIFT") {
                        want.remove(0);
                    }
                    if code.reversed {
                        want.reverse();
                    }
                    if *name == "VBLENDVPS" {
                        want.push(11);
                    }
                    assert_eq!(registers(&i), want, "{name} {bytes:02x?}");
                    let length = if code.length == 0 { 16 } else { 32 };
                    assert_eq!(longest(&i), length, "{name}");
                }
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn vector_instructions_on_memory() {
    for (name, code) in vex() {
        let form = form(name, *code);
        let Some(size) = form.memory else { continue };
        for (base, index) in [(7, None), (9, Some((0, 2))), (1, Some((0, 0))), (11, Some((8, 3))), (13, None)]
        {
            for displacement in [0, 64, -64, 127, 128, -128, -129, 8192, 100_000, -8] {
                let rm = Rm::Mem { base: Base::Gpr { base, index, displacement }, broadcast: false };
                let second = if form.three { 14 } else { 0 };
                let bytes = assembled_for(Target::Avx2, |a| a.vector(*code, 12, second, rm, form.imm));
                let i = whole(&bytes, name, &form);
                assert_eq!(i.memory_base().number(), usize::from(base), "{name}");
                match index {
                    Some((n, scale)) => {
                        assert_eq!(i.memory_index().number(), usize::from(n), "{name}");
                        assert_eq!(i.memory_index_scale(), 1 << scale);
                    }
                    None => assert_eq!(i.memory_index(), Register::None),
                }
                assert_eq!(i.memory_displacement64() as i64, i64::from(displacement), "{name} {bytes:02x?}");
                assert_eq!(i.memory_size().size(), size, "{name}");
                let mut want = vec![12];
                if form.three {
                    let stores = name.ends_with("_STORE");
                    want.insert(if stores { 0 } else { 1 }, 14);
                }
                if *name == "VBLENDVPS" {
                    want.push(11);
                }
                assert_eq!(registers(&i), want, "{name} {bytes:02x?}");
            }
        }
    }
}

#[test]
fn a_digit_selects_the_shift() {
    let names = [
        (c::VPSHIFTD, 2, "Vpsrld"),
        (c::VPSHIFTD, 4, "Vpsrad"),
        (c::VPSHIFTD, 6, "Vpslld"),
        (c::VPSHIFTQ, 2, "Vpsrlq"),
        (c::VPSHIFTQ, 6, "Vpsllq"),
    ];
    for (code, digit, name) in names {
        let i = decode(&assembled_for(Target::Avx2, |a| a.vector(code, digit, 12, Rm::Reg(9), Some(17))));
        assert_eq!((format!("{:?}", i.mnemonic()), registers(&i)), (name.to_owned(), vec![12, 9]));
        assert_eq!(i.immediate(2), 17);
    }
}

#[test]
fn constants_fill_a_register() {
    let (one, wide) = (Constant::Narrow(1.5f32.to_bits()), Constant::Wide(0x1234_5678_9abc_def0));
    let used = [(c::VADDPS, one), (c::VADDPD, wide), (c::VPADDQ, Constant::Multiples(-3)), (c::VMULPS, one)];
    let bytes = assembled_for(Target::Avx2, |a| {
        for (code, constant) in used {
            a.vector(code, 2, 4, Rm::Mem { base: Base::Pool(constant), broadcast: false }, None);
        }
        let places = Rm::Mem { base: Base::Pool(Constant::Places), broadcast: false };
        a.vector(c::VBLENDVPS, 2, 4, places, Some(0x50));
    });
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0, iced_x86::DecoderOptions::NONE);
    let mut at = || decoder.decode().memory_displacement64() as usize;
    let (a, b, s, again, places) = (at(), at(), at(), at(), at());
    assert_eq!(bytes[a..a + 32], 1.5f32.to_le_bytes().repeat(8));
    assert_eq!(bytes[b..b + 32], 0x1234_5678_9abc_def0u64.to_le_bytes().repeat(4));
    assert_eq!(bytes[s + 24..s + 32], (-9i64).to_le_bytes());
    assert_eq!(bytes[places + 28..places + 32], 7u32.to_le_bytes());
    assert_eq!(again, a);
    assert_eq!([s % 32, a % 32, b % 32, places % 32], [0; 4]);
}

#[test]
fn single_elements() {
    let text = |f: &dyn Fn(&mut Assembler)| {
        let bytes = assembled_for(Target::Avx2, |a| f(a));
        let i = decode(&bytes);
        assert_eq!(i.len(), bytes.len());
        let memory = (0..i.op_count()).any(|n| i.op_kind(n) == iced_x86::OpKind::Memory);
        let place = memory.then(|| {
            let size = i.memory_size().size();
            let (base, index) = (i.memory_base(), i.memory_index());
            format!(
                "{base:?}+{index:?}*{}{:+} {size}",
                i.memory_index_scale(),
                i.memory_displacement64() as i64
            )
        });
        let of = |n: u32| (i.op_kind(n) == iced_x86::OpKind::Register).then(|| i.op_register(n));
        let named: Vec<_> = (0..i.op_count()).filter_map(of).collect();
        format!("{:?} {named:?} {}", i.mnemonic(), place.unwrap_or_default())
    };
    assert_eq!(text(&|a| a.load_element(RSI, RDX, (RAX, 1), 0)), "Movzx [ESI] RDX+RAX*2+0 2");
    assert_eq!(text(&|a| a.load_element(RSI, RDI, (RAX, 0), 416)), "Movzx [ESI] RDI+RAX*1+416 1");
    assert_eq!(text(&|a| a.store_element(RSI, RDI, (RAX, 1), 416)), "Mov [SI] RDI+RAX*2+416 2");
    assert_eq!(text(&|a| a.store_element(RSI, RDX, (RAX, 0), 0)), "Mov [SIL] RDX+RAX*1+0 1");
    assert_eq!(text(&|a| a.lea_element(RDX, 9, (RAX, 1), -6)), "Lea [RDX] R9+RAX*2-6 0");
    assert_eq!(text(&|a| a.lea_element(RDX, RDX, (RAX, 0), 70)), "Lea [RDX] RDX+RAX*1+70 0");
    assert_eq!(text(&|a| a.lowest_bit(RAX, RBX)), "Bsf [EAX, EBX] ");
    assert_eq!(text(&|a| a.and(RBX, RSI)), "And [EBX, ESI] ");
}
