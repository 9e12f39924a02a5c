//! The mesh: ranks in a grid with named axes. It knows no device and no transport.

use crate::ShardingError;

/// An axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Its name, which is that of the groups along it: `dp`.
    pub name: String,
    /// The number of ranks along it.
    pub size: usize,
}

/// Ranks in a grid: the last axis counts fastest, as in PyTorch's `DeviceMesh`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    axes: Vec<Axis>,
}

impl Mesh {
    /// A mesh with these axes.
    ///
    /// # Errors
    /// None, an axis without a name or without ranks, two with one name, more than 2^20 ranks.
    pub fn new(axes: impl IntoIterator<Item = (impl Into<String>, usize)>) -> Result<Mesh, ShardingError> {
        let axes: Vec<Axis> = axes.into_iter().map(|(name, size)| Axis { name: name.into(), size }).collect();
        let refused = |what: String| Err(ShardingError::Mesh(what));
        if axes.is_empty() {
            return refused("it has no axis: write for example `dp=2`".into());
        }
        let mut ranks = 1usize;
        for (n, axis) in axes.iter().enumerate() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if axis.name.is_empty() || !axis.name.chars().all(word) || axis.name == kernel_ir::SELF_GROUP {
                return refused(format!("`{}` is no name of an axis: use letters, digits, `_`", axis.name));
            }
            if axis.size == 0 {
                return refused(format!("axis `{}` has no ranks", axis.name));
            }
            if axes[..n].iter().any(|a| a.name == axis.name) {
                return refused(format!("two axes are named `{}`", axis.name));
            }
            ranks = ranks.saturating_mul(axis.size);
        }
        if ranks > 1 << 20 {
            return refused(format!("{ranks} ranks are more than 2^20"));
        }
        Ok(Mesh { axes })
    }

    /// The axes, outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }
    /// The number of an axis by its name.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|a| a.name == name)
    }
    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }
    /// The place of a rank along every axis.
    pub fn coordinates(&self, rank: usize) -> Vec<usize> {
        let mut rest = rank;
        let mut all: Vec<usize> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let at = rest % axis.size;
                rest /= axis.size;
                at
            })
            .collect();
        all.reverse();
        all
    }
    /// The rank at these coordinates.
    pub fn rank(&self, coordinates: &[usize]) -> usize {
        self.axes.iter().zip(coordinates).fold(0, |rank, (axis, at)| rank * axis.size + at)
    }
    /// The ranks that share all coordinates with `rank` but that along `axis`, in order.
    pub fn group(&self, axis: usize, rank: usize) -> Vec<usize> {
        let mut at = self.coordinates(rank);
        (0..self.axes[axis].size)
            .map(|i| {
                at[axis] = i;
                self.rank(&at)
            })
            .collect()
    }
    /// The number of the group along an axis that `rank` is in, and its number within the group: the color and the key by
    /// which engines split their ranks.
    pub fn color(&self, axis: usize, rank: usize) -> (usize, usize) {
        let mut at = self.coordinates(rank);
        let key = std::mem::replace(&mut at[axis], 0);
        (self.rank(&at), key)
    }
}

/// `dp=2,tp=4`
impl std::str::FromStr for Mesh {
    type Err = ShardingError;
    fn from_str(text: &str) -> Result<Mesh, ShardingError> {
        let axis = |part: &str| {
            let (name, size) = part.split_once('=').unwrap_or((part, ""));
            let size = size.trim().parse::<usize>();
            let wrong =
                |_| ShardingError::Mesh(format!("`{part}` is no axis: write for example `dp=2,tp=4`"));
            size.map(|size| (name.trim().to_owned(), size)).map_err(wrong)
        };
        Mesh::new(text.split(',').map(axis).collect::<Result<Vec<_>, _>>()?)
    }
}

impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.axes.iter().map(|a| format!("{}={}", a.name, a.size)).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_coordinates_are_inverse() {
        let mesh: Mesh = "dp=2,tp=3,pp=2".parse().expect("a mesh");
        assert_eq!(mesh.ranks(), 12);
        for rank in 0..12 {
            assert_eq!(mesh.rank(&mesh.coordinates(rank)), rank);
        }
        assert_eq!(mesh.coordinates(7), [1, 0, 1]);
        assert_eq!(mesh.group(1, 7), [7, 9, 11]);
        assert_eq!((mesh.color(1, 9), mesh.color(1, 11)), ((7, 1), (7, 2)));
        assert_eq!(mesh.to_string(), "dp=2,tp=3,pp=2");
    }

    #[test]
    fn what_is_no_mesh_is_refused() {
        for text in ["", "dp", "dp=0", "dp=x", "dp=2,dp=2", "a b=2", "self=2", "dp=2000000"] {
            assert!(text.parse::<Mesh>().is_err(), "{text}");
        }
    }
}
