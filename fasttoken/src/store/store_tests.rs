//! Arrays keep their contents wherever they lie and whatever they outlive.

use super::*;
use std::fs::File;

#[test]
fn arrays_outlive_what_they_were_made_from() {
    let owned: Flat<u32> = vec![1, 2, 3].into();
    let clone = owned.clone();
    drop(owned);
    assert_eq!(*clone, [1, 2, 3]);
    assert!(Flat::<u64>::default().is_empty());

    let bytes: Vec<u8> = (0..200).collect();
    let file = FileBytes::copy_of(&bytes);
    assert_eq!(file.bytes(), bytes);
    let numbers = file.view::<u32>(64..72).unwrap();
    drop(file);
    let expected = [[64, 65, 66, 67], [68, 69, 70, 71]].map(u32::from_le_bytes);
    assert_eq!(*numbers, expected);
    let sent = std::thread::spawn(move || numbers.len());
    assert_eq!(sent.join().unwrap(), 2);
}

#[test]
fn moved_arrays_are_what_they_were() {
    let numbers: Vec<u64> = (0..300_000).collect();
    let bytes = vec![7u8; 100];
    let (mut a, mut b) = (Flat::from(numbers.clone()), Flat::from(bytes.clone()));
    let (mut empty, old) = (Flat::<u32>::default(), a.clone());
    let arrays: [&mut dyn Relocatable; 3] = [&mut b, &mut empty, &mut a];
    move_to_huge_pages(arrays.into(), ZeroedBuffer::default());
    assert_eq!((a.to_vec(), b.to_vec(), empty.len()), (numbers, bytes, 0));
    assert_eq!(*a, *old);
    assert!(!cfg!(target_os = "linux") || a.as_ptr() != old.as_ptr());
}

#[test]
fn spare_memory_is_used_if_it_fits() {
    let numbers: Vec<u64> = (0..300_000).collect();
    let bytes = numbers.len() * 8;
    for (len, used) in [
        (bytes, true),
        (bytes + bytes / 4, true),
        (bytes - 1, false),
        (2 * bytes, false),
    ] {
        let spare: ZeroedBuffer<u8> = ZeroedBuffer::zeroed(len);
        let place = spare.as_ptr();
        let paged = matches!(spare, ZeroedBuffer::Pages(..));
        let mut array = Flat::from(numbers.clone());
        move_to_huge_pages(vec![&mut array], spare);
        assert_eq!(array.to_vec(), numbers);
        assert!(!used || !paged || array.as_ptr().cast() == place);
    }
}

#[test]
fn buffers_are_zeroed_and_become_arrays() {
    for len in [0, 5, 300_000] {
        let mut buffer: ZeroedBuffer<u64> = ZeroedBuffer::zeroed(len);
        assert_eq!(*buffer, vec![0; len]);
        buffer.iter_mut().zip(1..).for_each(|(n, value)| *n = value);
        let mut array: Flat<u64> = buffer.into();
        // Once more, wherever it is.
        move_to_huge_pages(vec![&mut array], ZeroedBuffer::default());
        assert!((1..).zip(&*array).all(|(n, value)| *value == n));
        assert_eq!(array.len(), len);
    }
}

#[test]
fn files_are_read_whole() {
    let path = std::env::temp_dir().join(format!("fasttoken-read-{}", std::process::id()));
    for len in [0, 7, (1 << 20) + 3] {
        let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(*read(&path).unwrap(), bytes);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(read(&path).is_err());
}

#[test]
fn parts_that_do_not_fit_are_none() {
    let file = FileBytes::copy_of(&[7; 130]);
    assert!(file.view::<u8>(0..130).is_some());
    assert!(file.view::<u8>(0..131).is_none());
    assert!(file.view::<u32>(0..6).is_none());
    assert!(file.view::<u32>(2..6).is_none());
    #[expect(clippy::reversed_empty_ranges, reason = "damaged files have them")]
    let reversed = file.view::<u8>(9..3);
    assert!(reversed.is_none());
    assert!(file.view::<u64>(64..64).unwrap().is_empty());
}

#[test]
fn files_are_mapped() {
    let path = std::env::temp_dir().join(format!("fasttoken-store-{}", std::process::id()));
    std::fs::write(&path, [3; 100]).unwrap();
    let file = FileBytes::map(&File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let numbers = file.view::<u16>(0..100).unwrap();
    drop(file);
    assert_eq!(*numbers, [0x0303; 50]);
}
