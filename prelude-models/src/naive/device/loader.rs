//! The loader of weights of the device in f64.

use std::convert::Infallible;

use super::Weight;
use crate::{TensorView, WeightLoader};

/// Widens weights, and remembers what it was given.
#[derive(Default)]
pub(crate) struct NaiveLoader {
    pub(crate) names: Vec<String>,
    /// Matrices with biases, and how many.
    pub(crate) biased: Vec<(String, usize)>,
    pub(crate) embedding_is_head: bool,
    /// True for the fault of that name.
    pub(crate) forgets_norm_offset: bool,
}

fn widen(views: &[TensorView<'_>]) -> Vec<f64> {
    let mut values = Vec::new();
    for view in views {
        view.read_f32(0..view.len(), &mut values);
    }
    values.into_iter().map(f64::from).collect()
}

impl WeightLoader for NaiveLoader {
    type Weight = Weight;
    type Error = Infallible;

    fn linear(
        &mut self,
        name: &str,
        parts: &[TensorView<'_>],
        biases: &[TensorView<'_>],
    ) -> Result<Weight, Infallible> {
        self.names.push(name.to_owned());
        let bias = widen(biases);
        if !bias.is_empty() {
            self.biased.push((name.to_owned(), bias.len()));
        }
        Ok(Weight {
            values: widen(parts),
            bias,
            ..Weight::default()
        })
    }

    fn embedding(
        &mut self,
        name: &str,
        table: &TensorView<'_>,
        is_head: bool,
    ) -> Result<Weight, Infallible> {
        self.embedding_is_head = is_head;
        self.linear(name, std::slice::from_ref(table), &[])
    }

    fn vector(&mut self, name: &str, values: &TensorView<'_>) -> Result<Weight, Infallible> {
        self.linear(name, std::slice::from_ref(values), &[])
    }

    fn norm(
        &mut self,
        name: &str,
        values: &TensorView<'_>,
        offset: f32,
    ) -> Result<Weight, Infallible> {
        let mut weight = self.vector(name, values)?;
        let offset = if self.forgets_norm_offset {
            0.0
        } else {
            offset
        };
        weight
            .values
            .iter_mut()
            .for_each(|w| *w += f64::from(offset));
        Ok(weight)
    }

    fn rope(&mut self, inv_freq: &[f32], scaling: f32, _: usize) -> Result<Weight, Infallible> {
        Ok(Weight {
            inv_freq: inv_freq.to_vec(),
            scaling,
            ..Weight::default()
        })
    }
}
