//! Architecture names and the definitions that implement them.

use crate::{Checkpoint, Decoder, Encoder, Error, Model, Ops, WeightLoader};

/// Loads the model that the checkpoint holds, for positions `0..max_positions`.
///
/// A [`Checkpoint`] has one of the architectures of the families of decoders and encoders: names of
/// others are refused when it is opened.
///
/// # Errors
/// [`Error::Tensors`] if the tensors are not the architecture's, [`Error::NotFinite`] for damaged
/// weights, [`Error::Loader`] for what the device says.
pub fn load_model<O, L>(
    checkpoint: &Checkpoint,
    max_positions: usize,
    loader: &mut L,
) -> Result<Box<dyn Model<O>>, Error>
where
    O: Ops,
    O::Weight: Send + Sync + 'static,
    L: WeightLoader<Weight = O::Weight>,
{
    if let Some(encoder) = &checkpoint.config().encoder {
        let model = Encoder::load(checkpoint, encoder, max_positions, loader)?;
        return Ok(Box::new(model));
    }
    Ok(Box::new(Decoder::load(checkpoint, max_positions, loader)?))
}
