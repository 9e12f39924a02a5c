//! One compilation by hiprtc, in a process of its own: hiprtc ends the process that gives it an architecture which it does not know.
//! The ROCm backend calls this program, which is installed beside its library.

fn main() -> std::process::ExitCode {
    backend_rocm::serve()
}
