//! Functionalization, joint graph, partitioner.
