//! Names near to a mistyped one.

/// The names most like `name`, best first: at most three, each within a third of its length in edits.
pub fn nearest<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    // A hostile or accidental megabyte of "name" is not worth a quadratic comparison.
    if name.len() > 100 {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &str)> = all
        .into_iter()
        .map(|candidate| (distance(&name.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|&(d, candidate)| d <= (candidate.chars().count().max(name.chars().count()) / 3).max(1))
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`: the optimal string alignment distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, wanted) in
            [("", "", 0), ("cpu", "cpu", 0), ("cpu", "", 3), ("cup", "cpu", 1), ("cuda", "rocm", 4)]
        {
            assert_eq!(distance(a, b), wanted, "{a} {b}");
        }
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let all = ["cpu", "cuda", "rocm", "inspect"];
        assert_eq!(nearest("cup", all), ["cpu"]);
        assert_eq!(nearest("CUDA", all), ["cuda"]);
        assert_eq!(nearest("inspekt", all), ["inspect"]);
        assert!(nearest("tensorrt", all).is_empty());
        assert!(nearest(&"c".repeat(1 << 20), all).is_empty());
    }
}
