//! Older byte forms of a program, for readers of an earlier minor, where the program uses nothing that was added later.
//!
//! A minor only adds. So an older form is the present one with an older number in the header, provided that nothing in the
//! program would be lost on a reader which skips the keys that it does not know. The additions that would be lost are
//! listed here, once for each minor: every addition to kernel-ir adds its line. An addition that only permits something has
//! an older form: concurrent steps become consecutive ones, integer products become products of converted values, quantized weights are
//! dequantized by steps of their own, and a product by groups becomes one product for each group.

use thiserror::Error;

use crate::wire::{CHECKS, DROPOUT, FOURIER, GROUPS, INTEGER_PRODUCTS, QUANTIZED_WEIGHTS, header};
use crate::{
    ExternCall, ExternOp, IR_MAJOR, IR_MINOR, InstKind, Program, ScalarOp, Step, is_integer_product,
};

/// Why a program has no form of an older minor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{place}`: {feature} came with kernel-ir {IR_MAJOR}.{since} and has no form in {IR_MAJOR}.{wanted}{}", advice(*since))]
pub struct NoOlderForm {
    /// The construct without an older form, as it is named in a sentence: "the step `cond`".
    pub feature: String,
    /// Step or size symbol that uses it.
    pub place: String,
    /// The minor that introduced it.
    pub since: u16,
    /// The requested minor.
    pub wanted: u16,
}

/// A workaround, if there is one.
fn advice(since: u16) -> &'static str {
    match since {
        CHECKS => ": update the plugin, or compile with `unchecked_indices`",
        _ => "",
    }
}

impl Program {
    /// The byte form for readers of kernel-ir 1.`minor`; that of [`Program::to_bytes`] where `minor` is this one or newer.
    ///
    /// # Errors
    /// The first construct of the program that the minor lacks.
    pub fn to_bytes_at(&self, minor: u16) -> Result<Vec<u8>, NoOlderForm> {
        let wanted = minor.min(IR_MINOR);
        if wanted < TOGETHER && self.init.iter().chain(&self.steps).any(has_together) {
            return self.one_by_one().to_bytes_at(wanted);
        }
        if wanted < GROUPS
            && let Some(program) = self.with_products_for_each_group()
        {
            return program.to_bytes_at(wanted);
        }
        if wanted < QUANTIZED_WEIGHTS
            && let Some(program) = self.with_dequantized_weights()
        {
            return program.to_bytes_at(wanted);
        }
        if wanted < INTEGER_PRODUCTS
            && let Some(program) = self.with_float_products()
        {
            return program.to_bytes_at(wanted);
        }
        let mut newer = None;
        self.for_each_feature(&mut |since, feature, place| {
            if since > wanted && newer.is_none() {
                newer = Some(NoOlderForm { feature: feature(), place: place.to_owned(), since, wanted });
            }
        });
        match newer {
            Some(newer) => Err(newer),
            None => {
                let mut bytes = self.to_bytes();
                let header = header(wanted);
                bytes[..header.len()].copy_from_slice(&header);
                Ok(bytes)
            }
        }
    }

    /// The oldest minor whose readers understand the program as it is.
    pub fn needs_minor(&self) -> u16 {
        let mut needs = 0;
        self.for_each_feature(&mut |since, _, _| needs = needs.max(since));
        needs
    }

    /// Calls `found` with minor, name and place of everything that the first version lacks.
    fn for_each_feature(&self, found: &mut Found<'_>) {
        for symbol in self.symbols.values().filter(|s| s.unbacked) {
            found(2, &|| "a size that a step binds".into(), &symbol.name);
        }
        for input in self.inputs.iter().filter(|i| i.written) {
            found(4, &|| "an input that is written in place".into(), &input.name);
        }
        // Guards, sites and ranges are the caller's to check; a reader that skips them runs the same steps.
        for step in self.init.iter().chain(&self.steps) {
            of_step(self, step, found);
        }
    }
}

/// The minor that introduced concurrent steps.
const TOGETHER: u16 = 5;

fn has_together(step: &Step) -> bool {
    matches!(step, Step::Together(_)) || step.nested().into_iter().flatten().any(has_together)
}

type Found<'a> = dyn FnMut(u16, &dyn Fn() -> String, &str) + 'a;

fn of_step(program: &Program, step: &Step, found: &mut Found<'_>) {
    if is_integer_product(program, step) {
        found(INTEGER_PRODUCTS, &|| "a product of 8-bit integers".into(), step.name());
    }
    if matches!(step, Step::Matmul(m) if m.dequant.is_some()) {
        found(QUANTIZED_WEIGHTS, &|| "a product with quantized weights".into(), step.name());
    }
    if matches!(step, Step::Matmul(m) if m.groups.is_some()) {
        found(GROUPS, &|| "a product by groups".into(), step.name());
    }
    let since = match step {
        Step::Loop(_) | Step::Matmul(_) | Step::Conv(_) | Step::Attention(_) => 0,
        Step::Extern(call) => match call.op {
            ExternOp::Sort { .. } => 0,
            // Older readers know no routine but sorting.
            ExternOp::Linalg { .. } => 3,
            ExternOp::AttentionBackward { .. } => 5,
            ExternOp::Collective(_) | ExternOp::Wait | ExternOp::MaskTable(_) => 7,
            ExternOp::Fourier { .. } => FOURIER,
        },
        Step::Bind(_) | Step::Assert(_) | Step::Cond(_) | Step::For(_) | Step::While(_) => 2,
        Step::Together(_) => TOGETHER,
    };
    if since > 0 {
        let what = match step {
            Step::Extern(ExternCall { op: ExternOp::Fourier { .. }, .. }) => "a Fourier transform".to_owned(),
            _ => format!("the step `{}`", step.kind()),
        };
        found(since, &|| what.clone(), step.name());
    }
    if matches!(step, Step::Attention(k) if k.sums.is_some()) {
        found(5, &|| "an attention that gives the logarithms of its sums".into(), step.name());
    }
    let drops = match step {
        Step::Attention(k) => k.dropout.is_some(),
        Step::Extern(k) => matches!(k.op, ExternOp::AttentionBackward { dropout: Some(_), .. }),
        _ => false,
    };
    if drops {
        found(DROPOUT, &|| "dropout in attention".into(), step.name());
    }
    for (_, insts) in step.bodies() {
        for inst in insts {
            if matches!(inst.kind, InstKind::Check { .. }) {
                found(CHECKS, &|| "the check of an index from data".into(), step.name());
            }
            if let InstKind::Op { op, .. } = inst.kind {
                let since = operator_since(op);
                if since > 0 {
                    found(since, &|| format!("the operator `{}`", op.name()), step.name());
                }
            }
        }
    }
    for nested in step.nested().into_iter().flatten() {
        of_step(program, nested, found);
    }
}

/// The minor that introduced a scalar operator.
const fn operator_since(op: ScalarOp) -> u16 {
    match op {
        ScalarOp::Philox
        | ScalarOp::ChebyshevT
        | ScalarOp::ChebyshevU
        | ScalarOp::ChebyshevV
        | ScalarOp::ChebyshevW
        | ScalarOp::HermiteH
        | ScalarOp::HermiteHe
        | ScalarOp::LaguerreL
        | ScalarOp::LegendreP
        | ScalarOp::Igamma
        | ScalarOp::Igammac => 1,
        _ => 0,
    }
}
