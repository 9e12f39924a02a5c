//! What an earlier process asked a library, kept in the folder of compiled code under a key that names device and versions.
//!
//! Not here: the files (`cache`) and what is asked (`dnn`, `blas`).

use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::Cache;

/// The cache that a device uses now; a program may name another one.
pub(crate) type SharedCache = Arc<Mutex<Cache>>;

/// A library's answers.
#[derive(Clone)]
pub(crate) struct AnswerCache {
    cache: SharedCache,
    /// On what all answers depend beside the question.
    identity: Arc<str>,
}

impl AnswerCache {
    /// Answers of a library on a device; `identity` names both and the library's version.
    pub(crate) fn new(cache: SharedCache, identity: &str) -> AnswerCache {
        AnswerCache { cache, identity: identity.into() }
    }

    fn key<'a>(&'a self, question: &[&'a [u8]]) -> Vec<&'a [u8]> {
        std::iter::once(self.identity.as_bytes()).chain(question.iter().copied()).collect()
    }

    fn cache(&self) -> Cache {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer to a question.
    pub(crate) fn get(&self, question: &[&[u8]]) -> Option<Vec<u8>> {
        self.cache().get(&self.key(question))
    }

    /// Keeps an answer.
    pub(crate) fn put(&self, question: &[&[u8]], answer: &[u8]) {
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
        let cache: SharedCache = Arc::new(Mutex::new(Cache::named(folder.path().to_str().unwrap())));
        let answer_cache = |identity| AnswerCache::new(Arc::clone(&cache), identity);
        answer_cache("card 9.14").put(&[b"plan", b"x"], b"y");
        assert_eq!(answer_cache("card 9.14").get(&[b"plan", b"x"]).unwrap(), b"y");
        assert!(answer_cache("card 9.15").get(&[b"plan", b"x"]).is_none());
        *cache.lock().unwrap() = Cache::named("off");
        assert!(answer_cache("card 9.14").get(&[b"plan", b"x"]).is_none());
    }
}
