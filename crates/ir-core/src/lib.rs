//! What every IR shares: DType, Device, symbolic sizes, TensorMeta, typed arenas, origins.
