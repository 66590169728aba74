use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{EmbedParams, EmbedSumParams, GatherRowsParams},
};

use crate::support::{Values, launch, room_bf16, under_all_schedules, upload};

const VOCAB: usize = 37;

/// Returns the rows of `table` by index, NaN where there is none, unwritten from `live` on.
fn expected(table: &[bf16], width: usize, index: &[Option<usize>], live: usize) -> Vec<u16> {
    let row = |(i, at): (usize, &Option<usize>)| match at {
        _ if i >= live => vec![0xffff; width],
        None => vec![0x7fff; width],
        Some(at) => table[at * width..][..width]
            .iter()
            .map(|v| v.to_bits())
            .collect(),
    };
    index.iter().enumerate().flat_map(row).collect()
}

fn embed(device: &Device, rows: usize, width: usize, live: Option<u32>) {
    let mut values = Values::new(3);
    let table = values.bf16s(VOCAB * width, -2.0, 2.0);
    let sampled = [5i32, 36, 0, 37];
    let (mut ids, mut index) = (Vec::new(), Vec::new());
    for i in 0..rows {
        let (id, at) = match i % 9 {
            0 => (36, Some(36)),
            1 => (0, Some(0)),
            2 => (-2, Some(36)), // row 1 of the sampled ids
            3 => (-4, None),     // row 3, which is out of range
            4 => (-5, None),     // no such row
            5 => (37, None),
            6 => (i32::MIN, None),
            _ => {
                let id = values.below(VOCAB);
                (id as i32, Some(id))
            }
        };
        ids.push(id);
        index.push(at);
    }
    let h = room_bf16(device, rows * width);
    let params = EmbedParams {
        ids: upload(device, &ids),
        sampled: upload(device, &sampled),
        table: upload(device, &table),
        h,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        vocab: VOCAB as u32,
        sampled_rows: sampled.len() as u32,
        h_stride: width as u32,
        scale: 1.0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<u16> = device.download(h, rows * width).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    let copied = expected(&table, width, &index, live);
    assert!(got == copied, "[{rows}, {width}]");
    // The same, scaled and rounded once; a row that is not there stays NaN.
    let scaled = EmbedParams {
        scale: 25.298_222,
        ..params
    };
    launch(device, scaled.launch(), &scaled);
    let got: Vec<bf16> = device.download(h, rows * width).unwrap();
    for (i, (got, copied)) in got.iter().zip(&copied).enumerate() {
        let copied = bf16::from_bits(*copied);
        match copied.is_nan() {
            true => assert!(got.is_nan(), "scaled [{rows}, {width}] at {i}"),
            false => assert_eq!(
                *got,
                bf16::from_f32(scaled.scale * copied.to_f32()),
                "scaled [{rows}, {width}] at {i}"
            ),
        }
    }
}

fn gather(device: &Device, rows: usize, width: usize, live: Option<u32>) {
    let mut values = Values::new(4);
    let x_rows = 11;
    let x = values.bf16s(x_rows * width, -2.0, 2.0);
    let index: Vec<i32> = (0..rows)
        .map(|i| match i {
            0 => 10,
            1 => 11,
            2 => -1,
            _ => values.below(x_rows) as i32,
        })
        .collect();
    let y = room_bf16(device, rows * width);
    let params = GatherRowsParams {
        index: upload(device, &index),
        x: upload(device, &x),
        y,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        x_rows: x_rows as u32,
        x_stride: width as u32,
        y_stride: width as u32,
        first: 0,
        is_part: 0,
        reserved: 0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<u16> = device.download(y, rows * width).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    let there = |&i: &i32| usize::try_from(i).ok().filter(|&i| i < x_rows);
    let index: Vec<_> = index.iter().map(there).collect();
    assert!(
        got == expected(&x, width, &index, live),
        "[{rows}, {width}]"
    );
}

/// Rows from two parts of what indices name, a launch each.
fn gather_parts(device: &Device, rows: usize, width: usize) {
    let mut values = Values::new(5);
    let x_rows = 11;
    let x = values.bf16s(x_rows * width, -2.0, 2.0);
    // Parts hold 15..19 and 19..26.
    let index: Vec<i32> = (0..rows)
        .map(|i| match i {
            0 => 14,
            1 => 25,
            2 => 26,
            3 => -1,
            4 => 0,
            _ => 15 + values.below(x_rows) as i32,
        })
        .collect();
    let y = room_bf16(device, rows * width);
    let index_at = upload(device, &index);
    for part in [0..4, 4..x_rows] {
        let params = GatherRowsParams {
            index: index_at,
            x: upload(device, &x[part.start * width..part.end * width]),
            y,
            live: DevicePtr::NULL,
            rows: rows as u32,
            width: width as u32,
            x_rows: part.len() as u32,
            x_stride: width as u32,
            y_stride: width as u32,
            first: 15 + part.start as u32,
            is_part: 1,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
    }
    let got: Vec<u16> = device.download(y, rows * width).unwrap();
    for (r, &i) in index.iter().enumerate() {
        let at = usize::try_from(i - 15).ok().filter(|&at| at < x_rows);
        let row = &got[r * width..][..width];
        match at {
            Some(at) => assert!(
                row.iter()
                    .zip(&x[at * width..])
                    .all(|(a, b)| *a == b.to_bits()),
                "row {r} of [{rows}, {width}]"
            ),
            None => assert!(row.iter().all(|&bits| bits == 0xffff), "row {r} stays"),
        }
    }
}

/// Tables in any company; ids and positions at, and behind, the last row.
fn embed_sum(device: &Device, rows: usize, width: usize, live: Option<u32>, tables: [bool; 3]) {
    let [has_words, has_positions, has_types] = tables;
    let what =
        format!("[{rows}, {width}] words {has_words} positions {has_positions} types {has_types}");
    const POSITIONS: usize = 9;
    const TYPES: usize = 2;
    let mut values = Values::new(6);
    let words = values.bf16s(VOCAB * width, -2.0, 2.0);
    let position_table = values.bf16s(POSITIONS * width, -2.0, 2.0);
    let types = values.bf16s(TYPES * width, -2.0, 2.0);
    let all = (VOCAB * TYPES) as i32;
    let ids: Vec<i32> = (0..rows)
        .map(|i| match i % 7 {
            0 => all - 1,
            1 => all,
            2 => -1,
            3 => VOCAB as i32,
            4 => VOCAB as i32 - 1,
            _ => values.below(VOCAB) as i32,
        })
        .collect();
    let positions: Vec<i32> = (0..rows)
        .map(|i| match i % 11 {
            5 => POSITIONS as i32,
            6 => -1,
            i => i as i32 % POSITIONS as i32,
        })
        .collect();
    let table = |is_there: bool, table: &[bf16]| match is_there {
        true => upload(device, table),
        false => DevicePtr::NULL,
    };
    let before = values.bf16s(rows * width, -2.0, 2.0);
    let h = match has_words {
        true => room_bf16(device, rows * width),
        false => upload(device, &before),
    };
    let params = EmbedSumParams {
        ids: upload(device, &ids),
        positions: match has_positions {
            true => upload(device, &positions),
            false => DevicePtr::NULL,
        },
        words: table(has_words, &words),
        position_table: table(has_positions, &position_table),
        types: table(has_types, &types),
        h,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        num_words: VOCAB as u32,
        num_positions: POSITIONS as u32,
        num_types: if has_types { TYPES as u32 } else { 1 },
        h_stride: width as u32,
    };
    launch(device, params.launch(), &params);
    let got: Vec<bf16> = device.download(h, rows * width).unwrap();
    for (row, got) in got.chunks_exact(width).enumerate() {
        if live.is_some_and(|live| row >= live as usize) {
            let is_untouched = match has_words {
                true => got.iter().all(|x| x.to_bits() == 0xffff),
                false => got == &before[row * width..][..width],
            };
            assert!(is_untouched, "{what}: row {row} does not count");
            continue;
        }
        let count = if has_types { all } else { VOCAB as i32 };
        let is_there = (0..count).contains(&ids[row])
            && (!has_positions || (0..POSITIONS as i32).contains(&positions[row]));
        if !is_there {
            assert!(
                got.iter().all(|x| x.is_nan()),
                "{what}: row {row} is not there"
            );
            continue;
        }
        let (word, kind) = (ids[row] as usize % VOCAB, ids[row] as usize / VOCAB);
        for (i, got) in got.iter().enumerate() {
            let mut sum = match has_words {
                true => words[word * width + i].to_f32(),
                false => before[row * width + i].to_f32(),
            };
            if has_types {
                sum += types[kind * width + i].to_f32();
            }
            if has_positions {
                sum += position_table[positions[row] as usize * width + i].to_f32();
            }
            assert_eq!(*got, bf16::from_f32(sum), "{what}: row {row} at {i}");
        }
    }
}

#[test]
fn sums_of_tables() {
    under_all_schedules(|device| {
        for width in [8, 56, 264] {
            for tables in [
                [true, true, true],
                [true, true, false],
                [true, false, true],
                [true, false, false],
                [false, true, true],
                [false, false, true],
            ] {
                embed_sum(device, 23, width, None, tables);
                embed_sum(device, 17, width, Some(12), tables);
            }
        }
    });
}

#[test]
fn copies() {
    under_all_schedules(|device| {
        for width in [8, 56, 200, 1024] {
            for rows in [1, 3, 8, 17] {
                let live = (rows == 17).then_some(12);
                embed(device, rows, width, live);
                gather(device, rows, width, live);
                gather_parts(device, rows, width);
            }
        }
    });
}
