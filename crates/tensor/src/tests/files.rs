//! Safetensors: what is written reads back, and hostile files are errors.

use ir_core::{DType, Scalar};

use crate::safetensors::{SafetensorsError, SafetensorsFile};
use crate::*;

fn sample() -> SafetensorsFile {
    let mut file = SafetensorsFile::default();
    for (i, &dtype) in DType::ALL.iter().enumerate().filter(|(_, d)| **d != DType::C128) {
        let t = Tensor::full(dtype, &[i % 3, 2], Scalar::Int(1)).unwrap();
        file.tensors.insert(format!("t{}", dtype.name()), t);
    }
    file.tensors.insert("scalar".into(), Tensor::scalar(DType::F64, Scalar::Float(2.5)).unwrap());
    file.metadata.insert("step".into(), "3".into());
    file
}

#[test]
fn every_dtype_reads_back_as_views_of_the_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let file = sample();
    file.write(&path).unwrap();
    let back = SafetensorsFile::open(&path).unwrap();
    assert_eq!(back.metadata, file.metadata);
    assert_eq!(back.tensors.keys().collect::<Vec<_>>(), file.tensors.keys().collect::<Vec<_>>());
    for (name, t) in &file.tensors {
        let b = &back.tensors[name];
        allclose(b, t, 0.0, 0.0).unwrap();
        assert!(b.storage().is_mapped(), "{name} was copied");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
}

#[test]
fn writing_is_deterministic_and_replaces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    std::fs::write(&path, b"old").unwrap();
    sample().write(&path).unwrap();
    let first = std::fs::read(&path).unwrap();
    sample().write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);
}

#[test]
fn strided_tensors_are_written_in_logical_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.safetensors");
    let mut file = SafetensorsFile::default();
    let t = Tensor::from_vec(vec![0i32, 1, 2, 3, 4, 5], &[2, 3]).unwrap();
    file.tensors.insert("a".into(), t.permute(&[1, 0]).unwrap());
    file.tensors.insert("b".into(), t.narrow(0, 1, 1).unwrap());
    file.write(&path).unwrap();
    let back = SafetensorsFile::open(&path).unwrap();
    assert_eq!(back.tensors["a"].to_vec::<i32>().unwrap(), [0, 3, 1, 4, 2, 5]);
    assert_eq!(back.tensors["b"].to_vec::<i32>().unwrap(), [3, 4, 5]);
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("z.safetensors");
    let mut file = SafetensorsFile::default();
    file.tensors.insert("z".into(), Tensor::zeros(DType::C128, &[1]).unwrap());
    assert!(matches!(file.write(&path), Err(SafetensorsError::CannotWrite { .. })));
    assert!(!path.exists());
    let nowhere = folder.path().join("no/such/folder/z.safetensors");
    assert!(matches!(sample().write(nowhere), Err(SafetensorsError::Io { .. })));
}

fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn hostile_headers_are_errors() {
    let t = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let cases = [
        (Vec::new(), "empty"),
        (vec![1, 2, 3], "no length"),
        (u64::MAX.to_le_bytes().to_vec(), "length past everything"),
        (raw("{", 0), "no JSON"),
        (raw(&t("F32", "[2]", "[0,8]"), 4), "data cut off"),
        (raw(&t("F32", "[2]", "[0,8]"), 12), "data left over"),
        (raw(&t("F32", "[3]", "[0,8]"), 8), "shape larger than the data"),
        (raw(&t("F32", "[2]", "[8,0]"), 8), "offsets reversed"),
        (raw(&t("F32", "[2]", "[18446744073709551615,8]"), 8), "offset overflow"),
        (raw(&t("F32", "[4294967296,4294967296,4294967296]", "[0,8]"), 8), "size overflow"),
        (raw(&t("F32", "[-1]", "[0,8]"), 8), "negative size"),
        (raw(&t("WHAT", "[2]", "[0,8]"), 8), "unknown dtype"),
        (raw(&"[".repeat(100_000), 0), "deep nesting"),
    ];
    for (bytes, what) in cases {
        assert!(SafetensorsFile::from_bytes(&bytes).is_err(), "{what} was accepted");
    }
    let scales = raw(&t("F8_E8M0", "[2]", "[0,2]"), 2);
    let refused = SafetensorsFile::from_bytes(&scales);
    assert!(matches!(refused, Err(SafetensorsError::UnsupportedDType { .. })), "{refused:?}");
}

#[test]
fn unaligned_tensors_are_copied() {
    // The header's length is odd, so the data starts at an odd address.
    let mut header = r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#.to_owned();
    if header.len().is_multiple_of(2) {
        header.push(' ');
    }
    let mut bytes = raw(&header, 0);
    bytes.extend_from_slice(&1.25f64.to_le_bytes());
    let file = SafetensorsFile::from_bytes(&bytes).unwrap();
    assert_eq!(file.tensors["a"].to_vec::<f64>().unwrap(), [1.25]);
}

#[test]
fn a_missing_file_is_named() {
    let error = SafetensorsFile::open("/nonexistent/x.safetensors").unwrap_err();
    assert!(error.to_string().contains("/nonexistent/x.safetensors"), "{error}");
    let empty = tempfile::NamedTempFile::new().unwrap();
    assert!(SafetensorsFile::open(empty.path()).is_err());
}
