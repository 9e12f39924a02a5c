//! The tensors that a call is given: whether they fit the program, and where the device finds them.

use plugin_sdk::{DeviceId, TensorView};

use crate::GpuError;
use crate::prepare::Layout;
use crate::transfer::{on_host, same_layout};

/// What kernels take the addresses of buffers to be multiples of.
pub(crate) const ALIGNMENT: u64 = 16;

/// Where the device finds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere: it has no elements.
    Empty,
    /// In its own memory, as it is.
    Device(u64),
    /// In its own memory, but not aligned: kernels read 16 bytes at once, and a view into the middle of a tensor may begin
    /// anywhere.
    Unaligned(u64),
    /// On the host.
    Host,
}

/// Where a tensor of this name lies that a buffer of this layout is to hold.
pub(crate) fn source(
    name: &str,
    layout: &Layout,
    view: &TensorView<'_>,
    device: DeviceId,
) -> Result<Source, GpuError> {
    let extent = &layout.extent[..];
    if view.dtype() != layout.dtype || view.sizes() != extent {
        let what = format!(
            "`{name}` is {}{:?}, the program wants {}{extent:?}",
            view.dtype(),
            view.sizes(),
            layout.dtype
        );
        return Err(GpuError::Argument(what));
    }
    if layout.bytes == 0 {
        return Ok(Source::Empty);
    }
    if view.device() != device {
        return match on_host(view.device()) {
            true => Ok(Source::Host),
            false => {
                Err(GpuError::Argument(format!("`{name}` lies on another device: copy it to the host first")))
            }
        };
    }
    if !same_layout(extent, view.strides(), &layout.strides) {
        let what = format!(
            "`{name}` has strides {:?}, the program wants {:?}: make it contiguous",
            view.strides(),
            layout.strides
        );
        return Err(GpuError::Argument(what));
    }
    let address = view.as_ptr() as u64;
    Ok(if address.is_multiple_of(ALIGNMENT) { Source::Device(address) } else { Source::Unaligned(address) })
}

/// Whether tensors have the sizes that a call was prepared for.
pub(crate) fn sizes_fit(inputs: &[Layout], views: &[TensorView<'_>]) -> bool {
    inputs.len() == views.len() && inputs.iter().zip(views).all(|(l, v)| v.sizes() == l.extent)
}
