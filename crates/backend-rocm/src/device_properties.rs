//! What HIP says of a device that need not be open.

use gpu_codegen::{Dialect, Features, Target};
use gpu_runtime::GpuError;

use crate::api::{Api, api};
use crate::libraries;
use crate::properties::Properties;

/// A device.
pub(crate) struct DeviceProperties {
    pub(crate) properties: Properties,
    /// What kernels are made for, without options.
    pub(crate) target: Target,
}

impl DeviceProperties {
    /// # Errors
    /// No HIP runtime, no such device, an architecture that kernels are not made for.
    pub(crate) fn of(ordinal: i32) -> Result<DeviceProperties, GpuError> {
        let api = api()?;
        if !(0..api.devices()?).contains(&ordinal) {
            return Err(GpuError::Argument(format!("there is no ROCm device {ordinal}")));
        }
        let properties = Properties::of(api, ordinal)?;
        let target = target(&properties)?;
        Ok(DeviceProperties { properties, target })
    }

    /// On what depends what libraries and the compiler say.
    pub(crate) fn identity(&self) -> String {
        format!("{} {}", self.properties.name, self.properties.architecture)
    }

    /// What a listing says of it.
    pub(crate) fn attributes(&self, api: &Api) -> Vec<(String, String)> {
        let compiler = match crate::compiler::about() {
            Ok(compiler) => compiler,
            Err(e) => e.to_string(),
        };
        let lines = [
            ("architecture", self.properties.architecture.clone()),
            ("wave", self.target.wave.to_string()),
            ("multiprocessors", self.target.multiprocessors.to_string()),
            ("runtime", format!("{} {}", api.path.display(), api.version)),
            ("compiler", compiler),
        ];
        let libraries = libraries::OFFERING.map(|(name, library)| match libraries::locate(library) {
            Ok(path) => (name, path.display().to_string()),
            Err(e) => (name, e.to_string()),
        });
        lines.into_iter().chain(libraries).map(|(name, text)| (name.to_owned(), text)).collect()
    }
}

/// What kernels are made for: the architecture's row where it has one, with the device's own numbers.
fn target(properties: &Properties) -> Result<Target, GpuError> {
    let base = properties.base();
    if !base.starts_with("gfx") || ![32, 64].contains(&properties.wave) {
        return Err(GpuError::Argument(format!(
            "kernels are not made for `{}` with waves of {} lanes: a device is named as `gfx942`",
            properties.architecture, properties.wave
        )));
    }
    let plain = Target { wave: properties.wave, features: Features::NONE, ..Target::CDNA };
    let known = Target::of_architecture(&properties.architecture)
        .filter(|known| known.wave == properties.wave)
        .unwrap_or(plain);
    let or = |told: u32, known: u32| if told > 0 { told } else { known };
    Ok(Target {
        dialect: Dialect::HIP,
        multiprocessors: or(properties.multiprocessors, known.multiprocessors),
        lds: or(properties.shared, known.lds),
        cache: if properties.cache > 0 { properties.cache } else { known.cache },
        ..known
    })
}
