//! The tests of this crate, in one program: the stack from program to numbers, every backend of this build against the interpreter. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod autocast;
mod batch_groups;
mod c_backend;
mod cache;
mod capture;
mod carried;
mod channels_last;
mod contradictory_graphs;
mod device_ranks;
mod differential;
mod eager;
mod exchange;
mod foreign;
mod from_graph;
mod graph_plugins;
mod grouped;
mod guards;
mod in_place;
mod index_operators;
mod indices;
mod joined;
mod layers;
mod mesh;
mod minify;
mod modules;
mod numbers;
mod operands;
mod optimizers;
mod quantize;
mod quantized;
mod random;
mod random_in_loops;
mod report;
mod resnet18;
mod threads;
mod together;
mod transforms;
mod verify;
mod vocabulary;
mod weight_only;
mod wide_loops;
