//! Values that are computed lane by lane in scalar code, when an address first needs a lane; `vir` selects them
//! ([`crate::vir::by_lane`]).

use cranelift_codegen::ir::Value;
use kernel_ir::Val;
use smallvec::SmallVec;

use super::emit::Emit;
use super::values::{Class, Vals};
use crate::vir::VKind;

impl Emit<'_, '_> {
    /// One lane of a value of the present body, in the type of its class.
    pub(super) fn lane_of(&mut self, v: Val, lane: u32) -> Value {
        let n = v.0 as usize;
        if let Some((vals, width)) = self.made(n) {
            let class = Class::of(self.dtype_of(n));
            let saved = std::mem::replace(&mut self.width, width);
            let x = self.lane(class, &vals, if width == 1 { 0 } else { lane });
            self.width = saved;
            return x;
        }
        if let Some(x) = self.lanes.get(&(n, lane)) {
            return *x;
        }
        let saved = std::mem::replace(&mut self.width, 1);
        let x = self.make_lane(v, lane);
        self.width = saved;
        self.lanes.insert((n, lane), x);
        x
    }

    fn make_lane(&mut self, v: Val, lane: u32) -> Value {
        let inst = self.inst(v);
        let one = |x: Value| Vals::from_elem(x, 1);
        match &inst.kind {
            VKind::Load { at, .. } => self.load_lane(at, lane),
            VKind::Check { value, size, site, .. } => {
                let x = self.lane_of(*value, lane);
                self.check_lane(x, size, lane, None, *site);
                x
            }
            VKind::Cast(from) => {
                let (dtype, x) = (self.dtype_of(from.0 as usize), self.lane_of(*from, lane));
                self.cast(dtype, inst.dtype, &one(x))[0]
            }
            VKind::Op { op, args } => {
                let operand = args.last().map_or(inst.dtype, |v| self.dtype_of(v.0 as usize));
                let args: SmallVec<[Vals; 3]> = args.iter().map(|v| one(self.lane_of(*v, lane))).collect();
                self.op(*op, operand, &args)[0]
            }
            // PROOF: `vir::by_lane` selects no other kinds, and all other values are computed by now.
            _ => unreachable!("a value is made before its use"),
        }
    }
}
