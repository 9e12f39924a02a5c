//! Reader of torch.export archives.
