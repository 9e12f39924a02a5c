//! Registry of backends: built-ins by inventory, others by manifest and libloading.
