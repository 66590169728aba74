//! The way of tensors to a model's definition.
//!
//! A model's definition takes its tensors from a [`TensorSource`], by name and shape. A checkpoint with
//! a loader is one ([`crate::weight_source`]); a list of names and shapes is another, from which
//! follows what a checkpoint must hold ([`crate::tensors`]).

use std::ops::Range;

use crate::{DenseConfig, DenseModule, Error, RopeConfig};

/// The form in which a tensor that is no matrix of a product is loaded.
#[derive(Clone)]
pub(crate) enum Form<'a> {
    /// The weight of an RMS norm, each element times a power of two and with an offset added.
    Norm { factor: f32, offset: f32 },
    /// A vector as it is stored.
    Vector,
    /// A vector made of a tensor's numbers.
    Made(&'a dyn Fn(&[f32]) -> Vec<f32>),
    /// Rows of a table, which is the output head too or not.
    Table { rows: Range<usize>, is_head: bool },
}

/// The place of a matrix in a model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Layer,
    /// A head, or a router.
    Head,
    /// The matrix's index, and the number of matrices that are multiplied together.
    Stack((usize, usize)),
}

/// Gives a model's definition its tensors. Names of the body's are without what they begin with in the
/// checkpoint, unless a method says otherwise.
pub(crate) trait TensorSource {
    type Weight;

    /// Returns a name of the body as the checkpoint has it.
    fn of_body(&self, name: &str) -> String;

    /// Returns a tensor, by its whole name.
    fn tensor(
        &mut self,
        name: String,
        shape: &[usize],
        form: Form<'_>,
    ) -> Result<Self::Weight, Error>;

    /// Returns `parts` of so many outputs each stacked into one matrix, known to the loader as
    /// `name.weight`. All names are whole.
    fn stack(
        &mut self,
        name: String,
        parts: &[(String, usize)],
        shape: (usize, bool),
        place: Place,
    ) -> Result<Self::Weight, Error>;

    /// Returns a vector of zeros, known to the loader as `name`.
    fn zeros(&mut self, name: String, width: usize) -> Result<Self::Weight, Error>;

    /// Returns the table of rotations of heads of this size.
    fn rope(
        &mut self,
        name: &str,
        rope: &RopeConfig,
        head_dim: usize,
    ) -> Result<Self::Weight, Error>;

    /// Returns the weight `name.weight` of an RMS norm.
    fn norm(
        &mut self,
        name: &str,
        width: usize,
        (factor, offset): (f32, f32),
    ) -> Result<Self::Weight, Error> {
        let name = self.of_body(&format!("{name}.weight"));
        self.tensor(name, &[width], Form::Norm { factor, offset })
    }

    /// Returns the table `name.weight`.
    fn table(
        &mut self,
        name: &str,
        shape: [usize; 2],
        is_head: bool,
    ) -> Result<Self::Weight, Error> {
        let rows = 0..shape[0];
        let name = self.of_body(&format!("{name}.weight"));
        self.tensor(name, &shape, Form::Table { rows, is_head })
    }

    /// Returns `parts` of so many outputs each stacked into one matrix of so many inputs, with biases
    /// or without.
    fn linear(
        &mut self,
        name: &str,
        parts: &[(&str, usize)],
        shape: (usize, bool),
    ) -> Result<Self::Weight, Error> {
        self.linear_at(name, parts, shape, Place::Layer)
    }

    /// Returns the matrix of [`TensorSource::linear`] at another place.
    fn linear_at(
        &mut self,
        name: &str,
        parts: &[(&str, usize)],
        shape: (usize, bool),
        place: Place,
    ) -> Result<Self::Weight, Error> {
        let parts = parts
            .iter()
            .map(|(part, outputs)| (self.of_body(part), *outputs));
        let parts: Vec<_> = parts.collect();
        self.stack(self.of_body(name), &parts, shape, place)
    }

    /// Returns a matrix of a head, which lies outside the body, so its name is whole.
    fn head(
        &mut self,
        name: &str,
        outputs: usize,
        shape: (usize, bool),
    ) -> Result<Self::Weight, Error> {
        let parts = [(name.to_owned(), outputs)];
        self.stack(name.to_owned(), &parts, shape, Place::Head)
    }

    /// Returns the modules `Dense` behind the pooling.
    fn dense(&mut self, modules: &[DenseConfig]) -> Result<Vec<DenseModule<Self::Weight>>, Error> {
        let module = |of: &DenseConfig| {
            Ok(DenseModule {
                weight: self.head(&of.name(), of.outputs, (of.inputs, of.bias))?,
                activation: of.activation,
            })
        };
        modules.iter().map(module).collect()
    }
}
