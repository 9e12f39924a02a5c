//! What the variable FERROFLUX_HIP_STANDIN says: words with commas between, an architecture for each device, and settings for all of
//! them.
//!
//! - `schedule=backward`: blocks and threads run from the last to the first.
//! - `memory=N`: bytes of a device.
//! - `lost=N`: the launch of this number, from 1, loses its device.
//! - `silent=hipblaslt`, `silent=miopen`: the library is there and proposes nothing.
//! - `hip=5`: the runtime says that it is of ROCm 5.7, with that release's struct of properties and without memory pools.
//!
//! Without the variable there is one `gfx942`.

/// The variable.
const VARIABLE: &str = "FERROFLUX_HIP_STANDIN";
/// Bytes of a device that says nothing of them.
const MEMORY: u64 = 16 << 30;

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) devices: Vec<String>,
    pub(crate) backward: bool,
    pub(crate) memory: u64,
    pub(crate) lost: Option<u64>,
    /// As `hipRuntimeGetVersion` tells it.
    pub(crate) version: i32,
    /// Libraries that propose nothing.
    pub(crate) silent: Vec<String>,
}

impl Settings {
    pub(crate) fn of_environment() -> Settings {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Settings::read(&text).unwrap_or_else(|word| {
            eprintln!("{VARIABLE}: `{word}` means nothing: there is no device");
            Settings { devices: Vec::new(), ..Settings::plain() }
        })
    }

    fn plain() -> Settings {
        let devices = vec!["gfx942".to_owned()];
        Settings {
            devices,
            backward: false,
            memory: MEMORY,
            lost: None,
            version: 60_443_484,
            silent: Vec::new(),
        }
    }

    /// The word that means nothing, where there is one.
    fn read(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::plain();
        let mut devices = Vec::new();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let unknown = || word.to_owned();
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse::<u64>().map_err(|_| unknown());
            match name {
                _ if word.starts_with("gfx") => devices.push(word.to_owned()),
                "schedule" if ["forward", "backward"].contains(&value) => {
                    settings.backward = value == "backward"
                }
                "memory" => settings.memory = number()?,
                "lost" => settings.lost = Some(number()?),
                "silent" if ["hipblaslt", "miopen"].contains(&value) => {
                    settings.silent.push(value.to_owned())
                }
                "hip" if value == "5" => settings.version = 50_731_921,
                "hip" if value == "6" => settings.version = 60_443_484,
                _ => return Err(unknown()),
            }
        }
        if !devices.is_empty() {
            settings.devices = devices;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn words_are_devices_and_settings() {
        let plain = Settings::plain();
        assert_eq!(Settings::read(""), Ok(plain.clone()));
        let devices = vec!["gfx90a".to_owned(), "gfx1100".to_owned()];
        let read = Settings::read("gfx90a, gfx1100,schedule=backward,memory=7,lost=2,hip=5,silent=miopen");
        let (lost, silent) = (Some(2), vec!["miopen".to_owned()]);
        let wanted = Settings { devices, backward: true, memory: 7, lost, version: 50_731_921, silent };
        assert_eq!(read, Ok(wanted));
        assert_eq!(Settings::read("gfx942,speed=9"), Err("speed=9".into()));
        assert_eq!(Settings::read("silent=hiprtc"), Err("silent=hiprtc".into()));
        assert_eq!(Settings::read("memory=much"), Err("memory=much".into()));
    }
}
