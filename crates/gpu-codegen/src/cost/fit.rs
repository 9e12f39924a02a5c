//! Fits coefficients to measured times: least squares of the logarithm of predicted by measured time, so that a small
//! product counts as much as a large one.
//!
//! The logarithms of the coefficients are the unknowns, which keeps these positive. Steps are those of Levenberg and
//! Marquardt. A weak pull towards a first guess decides what the times say nothing about. Not here: the form of the model
//! (`cost`).

use super::{AT_ONCE, Kind, Model, Speeds, TERMS, Work, time};

/// A measured candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What it does.
    pub work: Work,
    /// Its time.
    pub seconds: f64,
}

/// Unknowns of a kind.
const COUNT: usize = TERMS.len();
/// Steps at most, and rounds of coefficients and of factors of tiles in turn.
const STEPS: usize = 200;
const ROUNDS: usize = 4;
/// Weight of the first guess, as measurements that are off by a factor of e.
const PULL: f64 = 1e-3;
/// Measurements of a tile that count as much as the assumption that it is like others.
const TILE_PULL: f64 = 4.0;
/// Fewest measurements of a kind.
const FEWEST: usize = COUNT;
/// The share of measurements whose errors the error of a kind bounds. By the table of an H200, a search that leaves out what this
/// excludes finds as quick candidates as with 0.99, of a sixth fewer; with 0.9 it loses up to a tenth in some steps.
const BOUNDED: f64 = 0.95;
/// The first guess: three quarters of a kernel's time are the launch of the quickest, and each amount alone would explain a
/// kernel whose others are nothing.
const LAUNCH_SHARE: f64 = 0.75;

type Row = [f64; COUNT];

/// The model of an architecture that fits times best. Kinds with too few measurements are left out.
pub fn fit(architecture: &str, speeds: Speeds, measured: &[Measured]) -> Model {
    let mut names: Vec<&str> = measured.iter().map(|m| m.work.kind).collect();
    names.sort_unstable();
    names.dedup();
    let good = |m: &&Measured| {
        m.seconds > 0.0 && m.seconds.is_finite() && m.work.terms.iter().all(|t| t.is_finite() && *t >= 0.0)
    };
    let of = |name: &str| measured.iter().filter(good).filter(|m| m.work.kind == name).collect::<Vec<_>>();
    let kinds = names.into_iter().filter_map(|name| kind(name, &of(name))).collect();
    Model { architecture: architecture.to_owned(), speeds, kinds }
}

fn kind(name: &str, measured: &[&Measured]) -> Option<Kind> {
    if measured.len() < FEWEST {
        return None;
    }
    let mut even: Vec<Measured> = measured.iter().map(|m| (*m).clone()).collect();
    let guess = first_guess(&even);
    let mut at = guess;
    let mut factors = Vec::new();
    for _ in 0..ROUNDS {
        at = settled(at, &guess, &even);
        factors = tiles(&at.map(f64::exp), measured);
        // The next round is of times as if all shapes of tiles were alike.
        for (even, own) in even.iter_mut().zip(measured) {
            let factor = factors.iter().find(|(tile, _)| *tile == own.work.tile).map_or(1.0, |(_, f)| *f);
            even.seconds = own.seconds / factor;
        }
    }
    let error = bound(&at, &even);
    Some(Kind { name: name.to_owned(), error, seconds: at.map(f64::exp), tiles: factors })
}

/// The logarithm of the factor by which most predictions are off at most. The times that a fit has seen say too little of
/// others, so it is widened as variances are: by the share of measurements that the unknowns leave.
fn bound(at: &Row, measured: &[Measured]) -> f64 {
    let mut errors: Vec<f64> = measured.iter().map(|m| residual(at, m).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let place = (BOUNDED * (errors.len() as f64 - 1.0)).round() as usize;
    let count = errors.len() as f64;
    errors[place] * (count / (count - COUNT as f64).max(0.25 * count)).sqrt()
}

/// The unknowns at which no step lessens the error.
fn settled(mut at: Row, guess: &Row, measured: &[Measured]) -> Row {
    let mut damping = 1e-2;
    let mut error = error_of(&at, guess, measured);
    for _ in 0..STEPS {
        let Some(step) = step(&at, guess, measured, damping) else { break };
        let mut next = at;
        // A step of more than a factor of e is not trusted.
        next.iter_mut().zip(step).for_each(|(x, s)| *x += s.clamp(-1.0, 1.0));
        let new = error_of(&next, guess, measured);
        if new < error {
            let gained = (error - new) / error.max(f64::MIN_POSITIVE);
            (at, error, damping) = (next, new, (damping * 0.3).max(1e-9));
            if gained < 1e-7 {
                break;
            }
        } else {
            damping *= 4.0;
            if damping > 1e9 {
                break;
            }
        }
    }
    at
}

/// Coefficients by which each amount explains the quickest kernel that it is large in.
fn first_guess(measured: &[Measured]) -> Row {
    std::array::from_fn(|n| {
        let each = measured.iter().filter(|m| m.work.terms[n] > 0.0).map(|m| m.seconds / m.work.terms[n]);
        let least = each.fold(f64::INFINITY, f64::min);
        let share = if n == 0 {
            LAUNCH_SHARE
        } else if n <= AT_ONCE {
            0.5
        } else {
            0.1
        };
        // A term that never occurs has no time.
        if least.is_finite() { (share * least).ln() } else { f64::MIN_POSITIVE.ln() }
    })
}

fn residual(at: &Row, m: &Measured) -> f64 {
    (time(&at.map(f64::exp), &m.work.terms) / m.seconds).ln()
}

fn error_of(at: &Row, guess: &Row, measured: &[Measured]) -> f64 {
    let pulled: f64 = at.iter().zip(guess).map(|(x, g)| PULL * (x - g).powi(2)).sum();
    measured.iter().map(|m| residual(at, m).powi(2)).sum::<f64>() + pulled
}

/// The derivatives of a residual: shares of the time, since the unknowns are logarithms.
fn slopes(at: &Row, m: &Measured) -> Row {
    let seconds = at.map(f64::exp);
    let total = time(&seconds, &m.work.terms);
    let one = |n: usize| seconds[n] * m.work.terms[n];
    let at_once: f64 = (1..=AT_ONCE).map(|n| one(n).powi(super::NORM)).sum();
    let norm = at_once.powf(1.0 / f64::from(super::NORM));
    std::array::from_fn(|n| {
        let part = match n {
            1..=AT_ONCE if at_once > 0.0 => norm * one(n).powi(super::NORM) / at_once,
            1..=AT_ONCE => 0.0,
            _ => one(n),
        };
        part / total
    })
}

/// The solution of the damped normal equations.
fn step(at: &Row, guess: &Row, measured: &[Measured], damping: f64) -> Option<Row> {
    let mut matrix = [[0.0; COUNT]; COUNT];
    let mut right = [0.0; COUNT];
    for m in measured {
        let (slopes, error) = (slopes(at, m), residual(at, m));
        for i in 0..COUNT {
            right[i] -= slopes[i] * error;
            for j in 0..COUNT {
                matrix[i][j] += slopes[i] * slopes[j];
            }
        }
    }
    for i in 0..COUNT {
        right[i] -= PULL * (at[i] - guess[i]);
        matrix[i][i] += PULL;
        matrix[i][i] *= 1.0 + damping;
    }
    solved(matrix, right)
}

/// Solves a symmetric positive definite system by Cholesky's factorization; `None` where rounding has made it indefinite.
fn solved(mut a: [[f64; COUNT]; COUNT], mut x: Row) -> Option<Row> {
    for j in 0..COUNT {
        for k in 0..j {
            for i in j..COUNT {
                a[i][j] -= a[i][k] * a[j][k];
            }
        }
        let root = a[j][j].sqrt();
        if !root.is_finite() || root <= 0.0 {
            return None;
        }
        for row in a.iter_mut().skip(j) {
            row[j] /= root;
        }
    }
    for i in 0..COUNT {
        for k in 0..i {
            x[i] -= a[i][k] * x[k];
        }
        x[i] /= a[i][i];
    }
    for i in (0..COUNT).rev() {
        for k in i + 1..COUNT {
            x[i] -= a[k][i] * x[k];
        }
        x[i] /= a[i][i];
    }
    Some(x)
}

/// The factor of each shape of tile: the mean of what is left, drawn towards 1 where there is little of it.
fn tiles(seconds: &Row, measured: &[&Measured]) -> Vec<(String, f64)> {
    let mut names: Vec<&str> =
        measured.iter().map(|m| m.work.tile.as_str()).filter(|t| !t.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    let factor = |name: &str| {
        let of = measured.iter().filter(|m| m.work.tile == name);
        let left: Vec<f64> = of.map(|m| (m.seconds / time(seconds, &m.work.terms)).ln()).collect();
        (left.iter().sum::<f64>() / (left.len() as f64 + TILE_PULL)).exp()
    };
    names.into_iter().map(|name| (name.to_owned(), factor(name))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Amounts that differ by powers of ten, by a multiplicative hash.
    fn amounts(n: u64) -> Row {
        std::array::from_fn(|t| {
            let h = (n * 16 + t as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let h = (h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
            if t == 0 { 1.0 } else { 10f64.powf(2.0 + 4.0 * h as f64 / f64::from(1 << 24)) }
        })
    }

    fn of(n: u64, seconds: &Row) -> Measured {
        let terms = amounts(n);
        let work = Work { kind: "mma", tile: format!("{}", n % 3), terms };
        // Two of three tiles are off by a tenth.
        let factor = [0.9, 1.0, 1.1][(n % 3) as usize];
        Measured { seconds: factor * time(seconds, &work.terms), work }
    }

    #[test]
    fn times_of_a_known_model_are_predicted() {
        let seconds: Row = std::array::from_fn(|t| if t == 0 { 4e-6 } else { 1e-11 * (t * t) as f64 });
        let measured: Vec<Measured> = (0..300).map(|n| of(n, &seconds)).collect();
        let model = fit("sm_90", Speeds::default(), &measured);
        for n in 1000..1100 {
            let other = of(n, &seconds);
            let predicted = model.predict(&other.work).unwrap().seconds;
            let off = (predicted / other.seconds).ln().abs();
            assert!(off < 0.03, "{n}: {predicted:e} of {:e}", other.seconds);
        }
        assert!(model.kinds[0].error < 0.03);
        // Times that are off by a tenth to either side are predicted as well as that.
        let unsure =
            |m: &Measured, n: usize| Measured { seconds: m.seconds * [0.9, 1.1][n / 3 % 2], ..m.clone() };
        let unsure: Vec<Measured> = measured.iter().enumerate().map(|(n, m)| unsure(m, n)).collect();
        let error = fit("sm_90", Speeds::default(), &unsure).kinds[0].error;
        assert!((0.08..0.15).contains(&error), "{error}");
    }

    #[test]
    fn the_coefficients_of_exact_times_are_found() {
        let seconds: Row = std::array::from_fn(|t| if t == 0 { 4e-6 } else { 1e-10 * (1 + t % 4) as f64 });
        let measured = (0..600).map(|n| {
            let mut terms = amounts(n);
            // Each amount is missing from half of the kernels, so that every other one is the largest of some.
            let present = |t: usize| t == 0 || amounts(n + 10_000)[t] > 1e4;
            (0..COUNT).filter(|t| !present(*t)).for_each(|t| terms[t] = 0.0);
            let work = Work { kind: "mma", tile: String::new(), terms };
            Measured { seconds: time(&seconds, &work.terms), work }
        });
        let model = fit("sm_90", Speeds::default(), &measured.collect::<Vec<_>>());
        for ((found, expected), term) in model.kinds[0].seconds.iter().zip(seconds).zip(super::super::TERMS) {
            assert!((found / expected).ln().abs() < 0.02, "{term}: {found:e} of {expected:e}");
        }
    }

    #[test]
    fn what_never_occurs_costs_nothing_and_few_times_are_no_model() {
        let seconds: Row = [1e-6; COUNT];
        let mut measured: Vec<Measured> = (0..40).map(|n| of(n, &seconds)).collect();
        measured.iter_mut().for_each(|m| m.work.terms[9] = 0.0);
        let model = fit("sm_90", Speeds::default(), &measured);
        assert!(model.kinds[0].seconds[9] < 1e-300);
        assert!(fit("sm_90", Speeds::default(), &measured[..FEWEST - 1]).kinds.is_empty());
        // Times that are none are left out.
        measured[0].seconds = f64::NAN;
        measured[1].seconds = 0.0;
        assert!(fit("sm_90", Speeds::default(), &measured).kinds[0].seconds.iter().all(|s| s.is_finite()));
    }
}
