//! Messages of `prost` as gRPC carries them.

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Bytes that a stream's buffers begin with: most messages are shorter.
const BUFFER_BYTES: usize = 2 * 1024;
/// Bytes of answers that are ready at once and go out together.
const TOGETHER_BYTES: usize = 32 * 1024;

/// The codec of one side of a method: it sends `E` and reads `D`.
#[derive(Debug)]
pub struct ProstCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for ProstCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Message + 'static, D: Message + Default + 'static> Codec for ProstCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> ProstEncoder<E> {
        ProstEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<D> {
        ProstDecoder(PhantomData)
    }
}

/// Encodes messages.
#[derive(Debug)]
pub struct ProstEncoder<E>(PhantomData<E>);

impl<E: Message> Encoder for ProstEncoder<E> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = item.encode(out);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, TOGETHER_BYTES)
    }
}

/// Decodes messages.
#[derive(Debug)]
pub struct ProstDecoder<D>(PhantomData<D>);

impl<D: Message + Default> Decoder for ProstDecoder<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let decoded = D::decode(buf);
        let wrong = |error: prost::DecodeError| Status::invalid_argument(error.to_string());
        decoded.map(Some).map_err(wrong)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, TOGETHER_BYTES)
    }
}
