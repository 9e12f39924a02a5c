//! Strided host storage, DLPack, safetensors.
