//! Whether a model would be found in the cache, and if not, the differences from the most similar entry.

use plugin_host::LoadedBackend;
use serde::Serialize;

use super::lookup::{Lookup, Stage};
use super::{EntryInfo, Key, Store};
use crate::train::TrainOptions;
use crate::{Error, Options, Program, graph_plugin};

/// What the cache has for a model.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// An entry with this key.
    Hit(Key),
    /// None.
    Miss {
        /// The key of the lookup.
        key: Key,
        /// The reason why an existing file cannot be used.
        damaged: Option<String>,
        /// The entry that agrees in most parts, and those in which it does not. `None` where the cache has no entries.
        nearest: Option<(Box<EntryInfo>, Vec<Difference>)>,
    },
    /// Nothing is cached, and why.
    Off(String),
}

/// A part in which an entry differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name of the part.
    pub part: String,
    /// What the entry has.
    pub entry: String,
    /// The value of the lookup.
    pub wanted: String,
}

impl Program {
    /// Looks up [`compile`](Program::compile) with these options. Nothing is compiled or changed.
    ///
    /// # Errors
    /// There is no such backend, or it cannot be loaded.
    pub fn cached(&self, options: &Options) -> Result<Report, Error> {
        Ok(match backend(options)? {
            Ok(backend) => {
                let graph = self.known_graph();
                looked_up(Lookup::new(Stage::Captured, &graph, self.name(), &backend, options))
            }
            Err(why) => Report::Off(why),
        })
    }

    /// Looks up [`train_step`](Program::train_step) with these options. Nothing is compiled or changed.
    ///
    /// # Errors
    /// As for [`cached`](Program::cached).
    pub fn cached_step(&self, train: &TrainOptions, options: &Options) -> Result<Report, Error> {
        let channels_last = train.is_channels_last(options)?;
        Ok(match backend(options)? {
            Ok(backend) => looked_up(self.step_lookup(train, channels_last, &backend, options)),
            Err(why) => Report::Off(why),
        })
    }
}

/// The backend, or why nothing is cached.
fn backend(options: &Options) -> Result<Result<LoadedBackend, String>, Error> {
    let whole = |name: &str| format!("`{name}` takes graphs as they are: there is nothing compiled");
    let backend = crate::registry().load(&options.backend)?;
    if graph_plugin::takes_graphs(&backend) {
        return Ok(Err(whole(backend.name())));
    }
    Ok(Store::open(&options.cache).map(|_| backend))
}

fn looked_up(lookup: Option<Lookup<'_>>) -> Report {
    match lookup {
        Some(lookup) => {
            let (store, key) = lookup.parts();
            report(&store, key)
        }
        None => Report::Off("the backend does not say what its code depends on; see the log".into()),
    }
}

pub(super) fn report(store: &Store, key: Key) -> Report {
    let damaged = match store.look(&key) {
        Ok(true) => return Report::Hit(key),
        Ok(false) => None,
        Err(why) => Some(why),
    };
    let agreeing =
        |e: &EntryInfo| key.0.iter().filter(|p| e.key.part(&p.name).is_some_and(|o| o.sum == p.sum)).count();
    // The same model first; among several entries the most recently used one.
    let same_graph = |e: &EntryInfo| e.key.part("graph").map(|p| &p.sum) == key.part("graph").map(|p| &p.sum);
    let entries = store.entries().into_iter().rev();
    let nearest = entries.max_by_key(|e| (same_graph(e), agreeing(e)));
    let nearest = nearest.map(|e| {
        let differences = differences(&e.key, &key);
        (Box::new(e), differences)
    });
    Report::Miss { key, damaged, nearest }
}

fn differences(entry: &Key, wanted: &Key) -> Vec<Difference> {
    // A part that only one of them has is a difference too.
    let lacking = entry.0.iter().filter(|p| wanted.part(&p.name).is_none());
    let one = |p: &super::Part| {
        let (has, wants) = (entry.part(&p.name), wanted.part(&p.name));
        let shown = |part: Option<&super::Part>| part.map_or_else(|| "none".to_owned(), |p| p.shown.clone());
        let differs = has.map(|p| &p.sum) != wants.map(|p| &p.sum);
        differs.then(|| Difference { part: p.name.clone(), entry: shown(has), wanted: shown(wants) })
    };
    wanted.0.iter().chain(lacking).filter_map(one).collect()
}
