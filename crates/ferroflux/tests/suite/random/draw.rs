//! One call of a random operator as a graph, run with a seed by the interpreter, by the fused program point by point and
//! by the `cpu` backend.

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueType};
use interp::Value;
use ir_core::{DType, SymExpr, TensorMeta};
use plugin_host::{CompileArgs, KERNEL_IR};
use tensor::Tensor;

/// A call.
pub(crate) struct Drawn {
    pub target: &'static str,
    /// Name of the result, on which the numbers depend.
    pub name: String,
    pub dtype: DType,
    args: Vec<Arg>,
    sizes: Vec<usize>,
    result: Option<(DType, Vec<usize>)>,
    operand: Option<Tensor>,
}

pub(crate) fn drawn(target: &'static str, args: Vec<Arg>, dtype: DType, sizes: &[usize]) -> Drawn {
    Drawn { target, name: "x".into(), dtype, args, sizes: sizes.into(), result: None, operand: None }
}

impl Drawn {
    /// Its first argument is a tensor of positive numbers.
    pub(crate) fn with_self(self) -> Drawn {
        let filled = tensor::formula::fill("self", &self.sizes, 0.4, 0.5).unwrap();
        let filled = filled.to_dtype(self.dtype).unwrap();
        self.with_tensor(filled)
    }
    /// Its first argument holds one number.
    pub(crate) fn with_value(self, value: f64) -> Drawn {
        let filled = Tensor::from_vec(vec![value; self.sizes.iter().product()], &self.sizes).unwrap();
        let filled = filled.to_dtype(self.dtype).unwrap();
        self.with_tensor(filled)
    }
    /// Its first argument holds standard normal numbers.
    pub(crate) fn with_normal(self) -> Drawn {
        let list = self.sizes.iter().map(|&n| Arg::int(n as i64)).collect();
        let args = vec![Arg::List(list), self.dtype.into()];
        let normal = eager(&drawn("aten.randn.default", args, self.dtype, &self.sizes), 99);
        self.with_tensor(normal)
    }
    pub(crate) fn with_tensor(mut self, tensor: Tensor) -> Drawn {
        self.operand = Some(tensor);
        self
    }
    /// The result has another type than the operand.
    pub(crate) fn giving(mut self, dtype: DType, sizes: &[usize]) -> Drawn {
        self.result = Some((dtype, sizes.into()));
        self
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new("draw");
        let ty = |dtype: DType, sizes: &[usize]| {
            let sizes = sizes.iter().map(|&n| SymExpr::from_i64(n as i64));
            ValueType::Tensor(TensorMeta::contiguous(dtype, sizes))
        };
        let mut args = self.args.clone();
        if self.operand.is_some() {
            let x = graph.placeholder(InputKind::User, "input", "input", ty(self.dtype, &self.sizes));
            args.insert(0, x.into());
        }
        let result = match &self.result {
            Some((dtype, sizes)) => ty(*dtype, sizes),
            None => ty(self.dtype, &self.sizes),
        };
        let x = graph.call(self.target, args, [(self.name.as_str(), result)], OriginId(0))[0];
        graph.outputs.push(Output { kind: OutputKind::User, arg: x.into() });
        graph
    }

    fn program(&self) -> kernel_ir::Program {
        let graph = prims::decompose(&self.graph()).unwrap_or_else(|e| panic!("{}: {e:?}", self.target));
        let program = inductor::compile(&graph, &inductor::Options::default())
            .unwrap_or_else(|e| panic!("{}: {e}", self.target));
        kernel_ir::verify(&program).unwrap();
        program
    }

    fn inputs(&self, seed: u64) -> Vec<Tensor> {
        let seed = Tensor::from_vec(vec![seed as i64], &[]).unwrap();
        self.operand.iter().cloned().chain([seed]).collect()
    }
}

pub(crate) fn eager(d: &Drawn, seed: u64) -> Tensor {
    let inputs = d.operand.iter().cloned().map(Value::Tensor).collect();
    let outcome =
        interp::execute_seeded(&d.graph(), inputs, seed).unwrap_or_else(|e| panic!("{}: {e}", d.target));
    outcome.outputs[0].as_tensor().unwrap().clone()
}

pub(crate) fn oracle(d: &Drawn, seed: u64) -> Tensor {
    let options = interp::kernels::Options { planned_arena: true };
    let code = interp::kernels::Executable::new(d.program(), &|_| None, options).unwrap();
    code.call(&d.inputs(seed)).unwrap().remove(0)
}

pub(crate) fn plugin(d: &Drawn, seed: u64) -> Tensor {
    use ferroflux as _; // registers the `cpu` backend
    let cpu = plugin_host::Registry::from_env().load("cpu").unwrap();
    let bytes = d.program().to_bytes();
    let args = CompileArgs::new(KERNEL_IR, &bytes).mode("default").options(&[("threads", "2")]);
    let mut code = cpu.compile(&args).unwrap();
    code.bind_constants(&[]).unwrap();
    let inputs = d.inputs(seed);
    code.execute(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0)
}

/// Largest distance between a sample's distribution function and the exact one.
pub(crate) fn cdf_distance(sample: &Tensor, cdf: impl Fn(f64) -> f64) -> f64 {
    let mut sorted: Vec<f64> = sample.iter_f64().collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let at = |(i, x): (usize, &f64)| {
        let f = cdf(*x);
        (f - i as f64 / n).abs().max(((i + 1) as f64 / n - f).abs())
    };
    sorted.iter().enumerate().map(at).fold(0.0, f64::max)
}
