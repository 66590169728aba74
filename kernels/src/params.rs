//! Parameter structs: one plain struct a kernel, passed by value.
//!
//! Rust and C++ each define it; the emulation build exports the C++ side's names, offsets and
//! sizes, and a test compares them.

use bytemuck::{Pod, Zeroable};

/// An address in device memory, 8 bytes, or 0 for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address 0, which is none.
    pub const NULL: Self = Self(0);

    /// Returns the address `bytes` further on.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A field of a parameter struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name, the same on both sides.
    pub name: &'static str,
    /// Bytes from the struct's start.
    pub offset: usize,
    /// The field's size in bytes.
    pub bytes: usize,
}

/// A parameter struct of a kernel: plain data without padding, equal to the C++ struct of the
/// same name.
pub trait Params: Pod {
    /// The C++ struct's name, without its namespace.
    const NAME: &'static str;
    /// The struct's fields, in order.
    const FIELDS: &'static [Field];
}

/// Defines a parameter struct and asserts its size.
macro_rules! params {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $bytes:literal {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes, "mirrors the C++ struct");

        impl $crate::Params for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [$crate::Field] = &[
                $($crate::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    bytes: size_of::<$type>(),
                },)*
            ];
        }
    };
}
pub(crate) use params;
