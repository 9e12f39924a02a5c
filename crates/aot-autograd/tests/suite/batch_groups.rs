//! Batch norm in groups of samples, as a rewriting: what a call becomes, what stays, and what is refused. What it
//! computes is judged with the whole stack (`ferroflux`).

use aot_autograd::{BatchGroupsProblem, batch_groups, functionalize};
use expect_test::expect;
use fx_ir::Graph;

fn grouped(text: &str) -> Result<String, Vec<BatchGroupsProblem>> {
    let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let functional = functionalize(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
    let grouped = batch_groups(&functional, 2);
    grouped.map(|g| g.to_string()).map_err(|all| all.into_iter().map(|e| e.problem).collect())
}

#[test]
fn a_call_keeps_its_results_and_its_operator() {
    let text = "fx 1.0\ngraph \"g\" {\n  %m: f32[3] = buffer \"m\"\n  %v: f32[3] = buffer \"v\"\n  %x: bf16[4, 3] = input \"x\"\n\n  \
         %y: bf16[4, 3] = aten.batch_norm.default(%x, none, none, %m, %v, true, 0.1, 1e-5, true)\n  return %y\n}\n";
    expect![[r#"
        fx 1.1

        graph "g" {
          %m: f32[3] = buffer "m"
          %v: f32[3] = buffer "v"
          %x: bf16[4, 3] = input "x"

          %y: bf16[4, 3], %saved_mean: f32[3], %saved_rstd: f32[3], %running_mean: f32[3], %running_var: f32[3] = ferroflux.batch_norm_in_groups.default(%x, none, none, %m, %v, 2, 0.1, 1e-5) from :::"aten._native_batch_norm_legit_functional.default"
          return %y
          return buffer "m" = %running_mean
          return buffer "v" = %running_var
        }
    "#]].assert_eq(&grouped(text).unwrap());
}

#[test]
fn instance_norm_and_evaluation_stay() {
    for call in [
        "batch_norm.default(%x, none, none, %m, %v, false",
        "instance_norm.default(%x, none, none, %m, %v, true",
    ] {
        let text = format!(
            "fx 1.0\ngraph \"g\" {{\n  %m: f32[3] = buffer \"m\"\n  %v: f32[3] = buffer \"v\"\n  %x: f32[5, 3, 2] = input \"x\"\n\n  \
             %y: f32[5, 3, 2] = aten.{call}, 0.1, 1e-5, true)\n  return %y\n}}\n"
        );
        let found = grouped(&text).unwrap();
        assert!(!found.contains("in_groups") && found.starts_with("fx 1.0"), "{found}");
    }
}

#[test]
fn what_has_no_groups_is_refused() {
    let of = |input: &str, call: &str, returned: &str| {
        let text = format!(
            "fx 1.0\ngraph \"g\" {{\n  %m: f32[3] = buffer \"m\"\n  %v: f32[3] = buffer \"v\"\n  %x: f32[{input}] = input \"x\"\n\n  \
             {call}\n  return %{returned}\n}}\n"
        );
        grouped(&text).unwrap_err()
    };
    let odd = of(
        "5, 3",
        "%y: f32[5, 3] = aten.batch_norm.default(%x, none, none, none, none, true, 0.1, 1e-5, true)",
        "y",
    );
    assert_eq!(odd, [BatchGroupsProblem::Indivisible { batch: 5, groups: 2 }]);
    let reserve = of(
        "4, 3",
        "%y: f32[4, 3], %s: f32[3], %i: f32[3], %r: u8[0] = aten._batch_norm_with_update.default(%x, none, none, %m, %v, 0.1, 1e-5)",
        "r",
    );
    assert_eq!(reserve, [BatchGroupsProblem::Reserve]);
}
