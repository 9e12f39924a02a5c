//! Keys of recorded computations: two have equal keys exactly if they are the same computation on the same types, so that
//! compiled code is found again. Addresses of table entries stand for operators; nothing of the data is in a key.

use fx_ir::Arg;
use ir_core::Scalar;
use prims::Op;

use crate::node::{Kind, Meta, Operand, Value};

/// A computation as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key(Vec<u64>);

impl Key {
    /// An empty one with room for so many numbers.
    pub(crate) fn with_room(numbers: usize) -> Key {
        Key(Vec::with_capacity(numbers))
    }

    pub(crate) fn number(&mut self, n: u64) {
        self.0.push(n);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(bytes));
        }
    }

    pub(crate) fn meta(&mut self, meta: &Meta) {
        self.number(meta.dtype as u64);
        self.number(meta.sizes.len() as u64);
        meta.sizes.iter().for_each(|s| self.number(*s as u64));
    }

    /// The dtype and the number of dimensions.
    pub(crate) fn class(&mut self, meta: &Meta) {
        self.number(meta.dtype as u64);
        self.number(meta.sizes.len() as u64);
    }

    pub(crate) fn op(&mut self, op: &'static Op) {
        self.number(std::ptr::from_ref(op).addr() as u64);
    }

    pub(crate) fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Operator { op, .. } => self.op(op),
            Kind::Graph(body) => {
                self.number(1);
                self.number(body.id);
            }
            Kind::Data | Kind::Alias { .. } => self.number(0),
        }
    }

    /// As [`operand`](Key::operand), where floats are equal whatever their values.
    pub(crate) fn operand_class(&mut self, operand: &Operand, value: &mut dyn FnMut(&mut Key, &Value)) {
        match operand.as_float() {
            Some(_) => self.number(114),
            None => self.operand(operand, value),
        }
    }

    /// An argument; tensors by `value`.
    pub(crate) fn operand(&mut self, operand: &Operand, value: &mut dyn FnMut(&mut Key, &Value)) {
        match operand {
            Operand::Value(v) => {
                self.number(100);
                value(self, v);
            }
            Operand::List(items) => {
                self.number(101);
                self.number(items.len() as u64);
                items.iter().for_each(|item| self.operand(item, value));
            }
            Operand::Size(size) => self.arg(&Arg::int(size.hint())),
            Operand::Arg(arg) => self.arg(arg),
        }
    }

    fn arg(&mut self, arg: &Arg) {
        match arg {
            Arg::None => self.number(102),
            Arg::Int(e) => match e.as_const() {
                Some(n) => {
                    self.number(103);
                    self.number(n as u64);
                }
                None => self.tagged(104, &e.to_string()),
            },
            Arg::Scalar(Scalar::Bool(b)) => self.number(105 + u64::from(*b)),
            Arg::Scalar(Scalar::Int(n)) => {
                self.number(107);
                self.number(*n as u64);
            }
            Arg::Scalar(Scalar::Float(x)) => {
                self.number(108);
                self.number(x.to_bits());
            }
            Arg::Scalar(Scalar::Complex(re, im)) => {
                self.number(109);
                self.number(re.to_bits());
                self.number(im.to_bits());
            }
            Arg::Str(text) => self.tagged(110, text),
            Arg::DType(dtype) => {
                self.number(111);
                self.number(*dtype as u64);
            }
            Arg::List(items) => {
                self.number(112);
                self.number(items.len() as u64);
                items.iter().for_each(|item| self.arg(item));
            }
            Arg::Device(_) | Arg::Layout(_) | Arg::MemoryFormat(_) | Arg::Value(_) | Arg::Graph(_) => {
                self.tagged(113, &format!("{arg:?}"));
            }
        }
    }

    fn tagged(&mut self, tag: u64, text: &str) {
        self.number(tag);
        self.text(text);
    }
}
