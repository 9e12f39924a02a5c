//! The rule by which either side reads a table that the other side may have built at another version.
//!
//! It is not a parser: it copies what `struct_size` covers and leaves every field beyond it zero (null).

use core::mem::{align_of, size_of};

/// First eight bytes of every table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the whole table as its builder knows it.
    pub struct_size: u32,
    /// ABI major of the builder.
    pub major: u16,
    /// ABI minor of the builder.
    pub minor: u16,
}

impl Head {
    /// Head of a table of type `T` at this crate's version.
    pub const fn of<T>() -> Self {
        Self { struct_size: size_of::<T>() as u32, major: crate::ABI_MAJOR, minor: crate::ABI_MINOR }
    }
}

/// Name, offset and size in bytes of one field of a table, in declaration order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name as in the struct.
    pub name: &'static str,
    /// Offset from the start of the table in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

impl Field {
    /// First byte after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.size
    }
}

/// Whether a table of `struct_size` bytes covers `field` whole.
pub const fn covers(struct_size: u32, field: &Field) -> bool {
    struct_size as usize >= field.end()
}

/// A size-first, append-only table.
///
/// # Safety
/// The type is `#[repr(C)]`, begins with [`Head`], all-zero bytes are a valid value of it (slots are `Option<fn>`,
/// pointers, integers), and `FIELDS` lists its fields in order. [`tables!`](crate::table) writes the implementation.
pub unsafe trait Table: Copy {
    /// Name of the struct, for messages.
    const NAME: &'static str;
    /// All fields in order, the head's three first.
    const FIELDS: &'static [Field];
}

/// Why a table could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The pointer is null.
    Null,
    /// The pointer is not aligned as the struct demands.
    Misaligned,
    /// `struct_size` does not cover the head.
    Truncated(u32),
    /// Another major: nothing beyond the head is known.
    Major(u16),
}

impl core::fmt::Display for TableError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Null => f.write_str("the pointer is null"),
            Self::Misaligned => f.write_str("the pointer is not aligned"),
            Self::Truncated(size) => {
                write!(f, "struct_size {size} does not cover the table's head of 8 bytes")
            }
            Self::Major(major) => {
                write!(f, "it has ABI major {major}, this side speaks {}", crate::ABI_MAJOR)
            }
        }
    }
}

impl core::error::Error for TableError {}

/// Copies a table of any minor: fields that its `struct_size` does not cover whole are zero in the copy, fields that
/// are newer than this crate are ignored. `head.struct_size` and `head.minor` keep what the builder wrote.
///
/// # Safety
/// `ptr` is null or points to at least eight readable bytes, and to `struct_size` readable bytes where that is larger;
/// covered slots hold what the struct's declaration says.
pub unsafe fn read<T: Table>(ptr: *const T) -> Result<T, TableError> {
    if ptr.is_null() {
        return Err(TableError::Null);
    }
    if !(ptr as usize).is_multiple_of(align_of::<T>()) {
        return Err(TableError::Misaligned);
    }
    // SAFETY: the caller promises eight readable bytes; alignment was checked just above.
    let head = unsafe { *(ptr as *const Head) };
    if (head.struct_size as usize) < size_of::<Head>() {
        return Err(TableError::Truncated(head.struct_size));
    }
    if head.major != crate::ABI_MAJOR {
        return Err(TableError::Major(head.major));
    }
    // Cut at the end of the last whole field: half a pointer must not become a slot.
    let end = T::FIELDS.iter().filter(|f| covers(head.struct_size, f)).map(Field::end).max();
    let mut copy = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `end` is at most both `struct_size` (readable by contract) and the size of `T`; zero bytes are a valid
    // `T` by the trait's contract, and so is any covered prefix of one.
    unsafe {
        core::ptr::copy_nonoverlapping(ptr as *const u8, copy.as_mut_ptr() as *mut u8, end.unwrap_or(0));
        Ok(copy.assume_init())
    }
}

/// Writes the [`Table`] implementation of structs that begin with a field `head: Head`.
macro_rules! tables {
    ($($ty:ident { $($field:ident),* $(,)? })*) => {$(
        // SAFETY: each struct below is `#[repr(C)]`, begins with `Head`, and holds only integers, raw pointers,
        // frozen pairs of those, byte arrays and `Option<extern fn>`, for which zero is valid.
        unsafe impl $crate::table::Table for $ty {
            const NAME: &'static str = stringify!($ty);
            const FIELDS: &'static [$crate::table::Field] = &[
                $crate::table::Field { name: "struct_size", offset: 0, size: 4 },
                $crate::table::Field { name: "major", offset: 4, size: 2 },
                $crate::table::Field { name: "minor", offset: 6, size: 2 },
                $($crate::table::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($ty, $field),
                    size: {
                        const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize { core::mem::size_of::<F>() }
                        size_of_field::<$ty, _>(|table| &table.$field)
                    },
                }),*
            ];
        }
    )*};
}
pub(crate) use tables;
