//! Lower to loops, schedule, fuse, plan memory, pick templates, emit kernel-ir.
