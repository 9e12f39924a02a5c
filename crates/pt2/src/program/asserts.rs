//! Assertions of the program narrow the ranges of symbols, which are checked where a symbol is bound. One that no range can
//! express becomes a guard if it is about the sizes of inputs; if it is about numbers that the program computes, it stays a
//! node and is checked at run time.
//!
//! Assertions on tensor metadata (`_assert_tensor_metadata`) already hold by the values' types; a check of data
//! (`_assert_async`) stays a node. Assertions on the storage offset of a tensor are dropped, because no backend need agree
//! with PyTorch there.

use ir_core::{Precisions, SymExpr};
use tracing::debug;

use super::build::{Builder, named};
use super::origin;
use super::scope::Scope;
use crate::error::Result;
use crate::json_path::JsonPath;
use crate::schema::{self, Argument};

impl<'a> Builder<'a> {
    /// Handles a node that only asserts; `false` for any other.
    pub(super) fn assertion(
        &mut self,
        scope: &Scope<'a>,
        target: &str,
        node: &'a schema::Node<'a>,
        at: &JsonPath<'_>,
    ) -> Result<bool> {
        match target {
            "aten._assert_scalar.default" => return Ok(self.assert_scalar(scope, node)),
            "aten.sym_constrain_range.default" | "aten.sym_constrain_range_for_size.default" => {
                self.constrain(scope, node, target.contains("for_size"), at)?;
            }
            "aten._assert_tensor_metadata.default" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the assertion needs no node.
    fn assert_scalar(&mut self, scope: &Scope<'a>, node: &'a schema::Node<'a>) -> bool {
        let asserted = node.inputs.first().map(|input| &input.arg);
        let Some(Argument::AsSymBool(schema::SymBoolArgument::AsName(name))) = asserted else { return true };
        match scope.truth(name) {
            Some(schema::SymBool::AsExpr(expr)) => {
                if self.symbols.assume(&expr.expr_str) {
                    return true;
                }
                if self.symbols.is_computed(&expr.expr_str) {
                    return false;
                }
                self.symbols.keep(&expr.expr_str, origin::read(&node.metadata, Precisions::default()));
                true
            }
            _ => {
                debug!(node = %named(node), "an assertion that no range can hold is dropped");
                true
            }
        }
    }

    /// `sym_constrain_range(size, min=None, max=None)`.
    fn constrain(
        &mut self,
        scope: &Scope<'a>,
        node: &'a schema::Node<'a>,
        for_size: bool,
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let value = |name: &str| node.inputs.iter().find(|i| &*i.name == name).map(|i| &i.arg);
        let number = |name: &str| match value(name) {
            Some(Argument::AsInt(n)) => Some(*n),
            _ => None,
        };
        let Some(Argument::AsSymInt(schema::SymIntArgument::AsName(name))) = value("size") else {
            return Ok(());
        };
        let size: SymExpr = self.symbols.int(scope.int(name, at)?, at)?;
        if for_size {
            self.symbols.is_size(&size);
        }
        let origin = origin::read(&node.metadata, Precisions::default());
        self.symbols.assume_range(&size, number("min"), number("max"), &origin);
        Ok(())
    }
}
