//! Views: other sizes and strides over the same bytes. Nothing here copies.

use crate::tensor::Sizes;
use crate::{Strides, Tensor, TensorError};

impl Tensor {
    /// Any sizes and strides over the same storage; `offset` counts from the storage's start.
    pub fn as_strided(
        &self,
        sizes: &[usize],
        strides: &[isize],
        offset: isize,
    ) -> Result<Tensor, TensorError> {
        let view = Tensor::new(self.storage.clone(), self.dtype, sizes, strides, offset)?;
        Ok(view.with_device(self.device.clone()))
    }

    /// Dimension `d` of the result is dimension `dims[d]` of this tensor.
    pub fn permute(&self, dims: &[usize]) -> Result<Tensor, TensorError> {
        let mut seen = vec![false; self.rank()];
        let valid = dims.len() == self.rank()
            && dims.iter().all(|&d| seen.get_mut(d).is_some_and(|seen| !std::mem::replace(seen, true)));
        if !valid {
            return Err(TensorError::Shape(format!(
                "{dims:?} is no permutation of {} dimensions",
                self.rank()
            )));
        }
        let mut view = self.clone();
        view.sizes = dims.iter().map(|&d| self.sizes[d]).collect();
        view.strides = dims.iter().map(|&d| self.strides[d]).collect();
        Ok(view)
    }

    /// Dimensions `a` and `b` exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor, TensorError> {
        let mut dims: Vec<usize> = (0..self.rank()).collect();
        if a >= dims.len() || b >= dims.len() {
            return Err(self.no_dim(a.max(b)));
        }
        dims.swap(a, b);
        self.permute(&dims)
    }

    /// Dimensions of size 1 repeated, and new leading dimensions, without copying: `[3, 1]` as `[2, 3, 4]`.
    pub fn expand(&self, sizes: &[usize]) -> Result<Tensor, TensorError> {
        let refused =
            || TensorError::Shape(format!("sizes {:?} do not expand to {sizes:?}", &self.sizes[..]));
        let lead = sizes.len().checked_sub(self.rank()).ok_or_else(refused)?;
        let mut strides = Strides::from_elem(0, sizes.len());
        for d in 0..self.rank() {
            match (self.sizes[d], sizes[lead + d]) {
                (have, want) if have == want => strides[lead + d] = self.strides[d],
                (1, _) => {}
                _ => return Err(refused()),
            }
        }
        self.as_strided(sizes, &strides, self.offset)
    }

    /// `length` elements of dimension `dim` from `start` on.
    pub fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Tensor, TensorError> {
        let size = *self.sizes.get(dim).ok_or_else(|| self.no_dim(dim))?;
        if start.checked_add(length).is_none_or(|end| end > size) {
            let text =
                format!("elements {start}..{start}+{length} lie outside dimension {dim} of size {size}");
            return Err(TensorError::Shape(text));
        }
        let mut view = self.clone();
        view.sizes[dim] = length;
        // An empty tensor's offset means nothing; keep it where arithmetic cannot overflow.
        if view.numel() > 0 {
            view.offset += start as isize * self.strides[dim];
        }
        Ok(view)
    }

    /// Element `index` of dimension `dim`, without that dimension.
    pub fn select(&self, dim: usize, index: usize) -> Result<Tensor, TensorError> {
        let mut view = self.narrow(dim, index, 1)?;
        view.sizes.remove(dim);
        view.strides.remove(dim);
        Ok(view)
    }

    /// A new dimension of size 1 before dimension `dim` (which may be the rank).
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor, TensorError> {
        if dim > self.rank() {
            return Err(self.no_dim(dim));
        }
        let mut view = self.clone();
        let stride = match view.sizes.get(dim) {
            Some(&size) => (size as isize).saturating_mul(view.strides[dim]),
            None => 1,
        };
        view.sizes.insert(dim, 1);
        view.strides.insert(dim, stride);
        Ok(view)
    }

    /// The same elements in the same order with other sizes, without copying; `None` where the strides do not allow it
    /// or the counts differ.
    pub fn view_as_sizes(&self, sizes: &[usize]) -> Option<Tensor> {
        let numel = crate::tensor::checked_numel(self.dtype, sizes).ok()?;
        if numel != self.numel() {
            return None;
        }
        let strides = view_strides(&self.sizes, &self.strides, sizes)?;
        self.as_strided(sizes, &strides, self.offset).ok()
    }

    /// As [`view_as_sizes`](Self::view_as_sizes), copying where no view is possible.
    pub fn reshape(&self, sizes: &[usize]) -> Result<Tensor, TensorError> {
        let numel = crate::tensor::checked_numel(self.dtype, sizes)?;
        if numel != self.numel() {
            let text = format!("{} elements do not fill sizes {sizes:?}", self.numel());
            return Err(TensorError::Shape(text));
        }
        match self.view_as_sizes(sizes) {
            Some(view) => Ok(view),
            None => {
                let own = self.copied()?;
                own.view_as_sizes(sizes)
                    .ok_or_else(|| TensorError::Shape(format!("cannot view as {sizes:?}")))
            }
        }
    }

    fn no_dim(&self, dim: usize) -> TensorError {
        TensorError::Shape(format!("there is no dimension {dim} in sizes {:?}", &self.sizes[..]))
    }
}

/// Strides under which `new` sizes walk the elements of sizes `old` and `strides` in the same order; `None` where a copy
/// is needed. Both must have the same number of elements.
///
/// Old dimensions are taken from the innermost as long as they continue each other in memory; each such run must be
/// filled exactly by new dimensions.
pub fn view_strides(old: &[usize], strides: &[isize], new: &[usize]) -> Option<Strides> {
    if old.contains(&0) {
        return Some(crate::contiguous_strides(new));
    }
    let kept: Vec<(usize, isize)> =
        old.iter().copied().zip(strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
    let new_sizes = Sizes::from_slice(new);
    let mut result = Strides::from_elem(1, new.len());
    let (mut at, mut next) = (kept.len(), new.len());
    let mut stride_of_ones = 1;
    while at > 0 {
        let base = kept[at - 1].1;
        let mut run = kept[at - 1].0;
        at -= 1;
        while at > 0 && kept[at - 1].1 == base.wrapping_mul(run as isize) {
            run = run.wrapping_mul(kept[at - 1].0);
            at -= 1;
        }
        let mut filled = 1usize;
        while next > 0 && (filled < run || new_sizes[next - 1] == 1) {
            next -= 1;
            result[next] = base.wrapping_mul(filled as isize);
            filled = filled.wrapping_mul(new_sizes[next]);
        }
        if filled != run {
            return None;
        }
        stride_of_ones = base.wrapping_mul(run as isize);
    }
    (0..next).for_each(|d| result[d] = stride_of_ones);
    Some(result)
}
