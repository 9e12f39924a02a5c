//! The answers that libraries gave to earlier processes, stored with the compiled code under keys that name device and
//! versions.
//!
//! Not here: the files (`cache`) and what is asked (the backends).

use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::Cache;

/// The cache that a device uses now; a program may name another one.
pub type SharedCache = Arc<Mutex<Cache>>;

/// The answers of one library.
#[derive(Clone)]
pub struct AnswerCache {
    cache: SharedCache,
    /// Everything but the question that the answers depend on.
    identity: Arc<str>,
}

impl AnswerCache {
    /// Answers of a library on a device; `identity` names both and the library's version.
    pub fn new(cache: SharedCache, identity: &str) -> AnswerCache {
        AnswerCache { cache, identity: identity.into() }
    }

    fn key<'a>(&'a self, question: &[&'a [u8]]) -> Vec<&'a [u8]> {
        std::iter::once(self.identity.as_bytes()).chain(question.iter().copied()).collect()
    }

    fn cache(&self) -> Cache {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer to a question.
    pub fn get(&self, question: &[&[u8]]) -> Option<Vec<u8>> {
        self.cache().get(&self.key(question))
    }

    /// Keeps an answer.
    pub fn put(&self, question: &[&[u8]], answer: &[u8]) {
        self.cache().put(&self.key(question), answer);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn answers_are_those_of_one_device_and_version() {
        let folder = tempfile::tempdir().unwrap();
        let cache: SharedCache = Arc::new(Mutex::new(Cache::named("any", folder.path().to_str().unwrap())));
        let answer_cache = |identity| AnswerCache::new(Arc::clone(&cache), identity);
        answer_cache("card 9.14").put(&[b"plan", b"x"], b"y");
        assert_eq!(answer_cache("card 9.14").get(&[b"plan", b"x"]).unwrap(), b"y");
        assert!(answer_cache("card 9.15").get(&[b"plan", b"x"]).is_none());
        *cache.lock().unwrap() = Cache::named("any", "off");
        assert!(answer_cache("card 9.14").get(&[b"plan", b"x"]).is_none());
    }
}
