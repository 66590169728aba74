//! The order of scales in `fp8_scales.cuh`, by naive twins.

/// Row and group of each scale of so many rows, in the order in which they lie.
fn places(rows: usize, groups: usize) -> Vec<[usize; 2]> {
    let fours = if rows <= 16 { 0 } else { rows - rows % 4 };
    let of_fours = (0..groups).flat_map(|group| (0..fours).map(move |row| [row, group]));
    let of_rest = (fours..rows).flat_map(|row| (0..groups).map(move |group| [row, group]));
    of_fours.chain(of_rest).collect()
}

/// Scales `[rows, groups]` in the order of kernels.
pub(crate) fn to_kernels<T: Copy>(scales: &[T], groups: usize) -> Vec<T> {
    let places = places(scales.len() / groups, groups).into_iter();
    places
        .map(|[row, group]| scales[row * groups + group])
        .collect()
}

/// Scales in the order of kernels as `[rows, groups]`.
pub(crate) fn of_kernels<T: Copy>(scales: &[T], groups: usize) -> Vec<T> {
    let mut ordered = scales.to_vec();
    for (scale, [row, group]) in scales.iter().zip(places(scales.len() / groups, groups)) {
        ordered[row * groups + group] = *scale;
    }
    ordered
}

/// Scales of a weight, `[⌈n / 128⌉, blocks]`, filled up with NaN to a multiple of 4.
pub(crate) fn of_weight(scales: &[f32], blocks: usize) -> Vec<f32> {
    let fill = [f32::NAN; 3];
    let rows = scales.chunks_exact(blocks);
    rows.flat_map(|row| [row, &fill[..(4 - blocks % 4) % 4]].concat())
        .collect()
}

#[test]
fn scales_of_many_rows_lie_in_fours() {
    // A scale of row r and group g is 10 · r + g.
    let scales = |rows: usize| -> Vec<usize> {
        let of_row = |row| (0..3).map(move |group| 10 * row + group);
        (0..rows).flat_map(of_row).collect()
    };
    assert_eq!(to_kernels(&scales(16), 3), scales(16));
    let ordered = to_kernels(&scales(18), 3);
    assert_eq!(ordered[..5], [0, 10, 20, 30, 40]);
    assert_eq!(ordered[14..18], [140, 150, 1, 11]);
    assert_eq!(ordered[47..], [152, 160, 161, 162, 170, 171, 172]);
    for rows in [1, 16, 17, 18, 20, 31] {
        let kernels = to_kernels(&scales(rows), 3);
        assert_eq!(of_kernels(&kernels, 3), scales(rows));
    }
    let filled = of_weight(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
    assert!(filled[..3] == [1.0, 2.0, 3.0] && filled[4..7] == [4.0, 5.0, 6.0]);
    assert!(filled.len() == 8 && filled[3].is_nan() && filled[7].is_nan());
}
