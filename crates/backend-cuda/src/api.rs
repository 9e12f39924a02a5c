//! Tables of a vendor library's functions, looked up in the very file that [`libraries::find`](crate::libraries::find) chose.
//!
//! A process may hold two installations of one library: Python's packages bring their own, and the system has another. Bindings
//! that open a library by its name may get the one that the process did not use before; cuDNN's parts, which open each other by
//! name, are then mixed and propose nothing. A table has no such choice.
//!
//! Not here: which file is chosen (`libraries`), and what the functions are called for.

/// Declares a struct of function pointers with `load`, which looks all of them up once for the life of the process.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $vis:vis struct $Api:ident in $library:expr, which is $wanted:literal;
        $($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*
    ) => {
        $(#[$about])*
        $vis struct $Api {
            $($(#[$doc])* $vis $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl $Api {
            /// The library's functions.
            ///
            /// # Errors
            /// It is not there, or lacks one of the functions.
            $vis fn load() -> Result<&'static $Api, gpu_runtime::GpuError> {
                static API: std::sync::OnceLock<Result<$Api, gpu_runtime::GpuError>> = std::sync::OnceLock::new();
                let load = || {
                    let (library, path) = crate::libraries::opened($library)?;
                    let wrong = |e: libloading::Error| gpu_runtime::GpuError::Driver {
                        call: $wanted,
                        what: format!("{}: {e}; {} is needed", path.display(), $wanted),
                    };
                    // SAFETY: by the library's name and its documentation the symbols are functions with these signatures.
                    unsafe {
                        Ok($Api {
                            $($field: *library.get(concat!($symbol, "\0").as_bytes()).map_err(wrong)?,)*
                        })
                    }
                };
                API.get_or_init(load).as_ref().map_err(Clone::clone)
            }
        }
    };
}

pub(crate) use functions;
