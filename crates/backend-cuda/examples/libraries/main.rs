//! Runs every kind of call of NVIDIA's libraries that the backend makes, each of the ways that it offers for a step, and
//! prints the error against double precision and the time on the device. Ends with 1 where a way is wrong or fails, with
//! 0 and a word where there is no GPU.
//!
//! `libraries [NAME]`: only the steps whose name contains NAME. `libraries --large [NAME]`: products of the sizes that
//! networks have, by every generated way of the copy engine and the first few others, beside the library's.
//! `libraries --depthwise [NAME]`: depthwise convolutions and their gradients, by every way that is generated for them;
//! `--depthwise-in_background`: also by the library's and by a thread a point, which takes minutes.

mod case;
mod cases;
mod depthwise;
mod run;

fn main() -> std::process::ExitCode {
    for library in [
        backend_cuda::Library::Driver,
        backend_cuda::Library::Nvrtc,
        backend_cuda::Library::Blas,
        backend_cuda::Library::Dnn,
    ] {
        match backend_cuda::locate(library) {
            Ok(path) => println!("{library:?}: {}", path.display()),
            Err(e) => println!("{library:?}: {e}"),
        }
    }
    let driver = match backend_cuda::open(0) {
        Ok(driver) => driver,
        Err(e) => {
            println!("no GPU to run on: {e}");
            return std::process::ExitCode::SUCCESS;
        }
    };
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let kind = args.first().filter(|a| a.starts_with("--")).cloned();
    if kind.is_some() {
        args.remove(0);
    }
    let (made, most) = match kind.as_deref() {
        Some("--depthwise" | "--depthwise-all") => (depthwise::cases(), depthwise::CANDIDATES),
        Some(_) => (cases::large(), run::FEW),
        None => (Vec::new(), 1),
    };
    let filter = args.first().cloned().unwrap_or_default();
    let alone = kind.as_deref() == Some("--depthwise");
    println!("{}", run::HEADER);
    let mut bad = 0;
    // One at a time: their numbers fill gigabytes.
    for (name, make) in made.iter().filter(|(name, _)| name.contains(&filter)) {
        bad += run::run(&*driver, &make(name), most, alone);
    }
    if kind.is_none() {
        for case in cases::all().iter().filter(|c| c.name.contains(&filter)) {
            bad += run::run(&*driver, case, 1, false);
        }
    }
    println!("{bad} ways failed");
    std::process::ExitCode::from(u8::from(bad > 0))
}
