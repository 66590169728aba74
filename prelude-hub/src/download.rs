//! The download of one file: into `HASH.incomplete`, resumed where it was cut, checked, renamed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use hyper::{HeaderMap, Response, StatusCode, body::Incoming, header};

use crate::{
    Error,
    cache::io_error,
    checksum::Hasher,
    client::{Attempts, Client, Failed, Refusal},
    listing::RemoteFile,
    progress::Meter,
};

/// An attempt that brought this many bytes does not count as failed.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Downloads a file to `blob`. The caller holds the file's lock. `refused` makes an error of a
/// refusal.
///
/// # Errors
/// [`Error`]; what has arrived stays in `blob` with the ending `.incomplete`, unless it is wrong.
pub(crate) async fn download(
    client: &Client,
    url: &str,
    file: &RemoteFile,
    blob: &Path,
    meter: &Meter<'_>,
    refused: impl Fn(Refusal) -> Failed,
) -> Result<(), Error> {
    let mut part = Part::open(blob, file, meter)?;
    let mut attempts = Attempts::new(client.timing());
    let mut is_second = false;
    loop {
        let before = part.len;
        match transfer(client, url, &mut part, &refused).await {
            Ok(()) => match part.finish(blob)? {
                None => return Ok(()),
                Some(error) if is_second => return Err(error),
                // An earlier program may have left a damaged beginning.
                Some(_) => is_second = true,
            },
            Err(failed) => {
                if part.len >= before + PROGRESS_BYTES {
                    attempts.restart();
                }
                attempts.wait(failed).await?;
            }
        }
    }
}

/// Fetches what is missing of a file in one request.
async fn transfer(
    client: &Client,
    url: &str,
    part: &mut Part<'_>,
    refused: &impl Fn(Refusal) -> Failed,
) -> Result<(), Failed> {
    let size = part.file.size;
    if part.len == size {
        return Ok(());
    }
    let from = (part.len > 0).then_some(part.len);
    let response = client.get(url, from).await?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT if from.is_some() => {
            let range = content_range(response.headers());
            if range.is_none_or(|(start, _)| start != part.len) {
                part.reset()?;
                return Err(Failed::network(
                    url,
                    "the server sent another range than asked",
                ));
            }
            check_size(url, size, range.map(|(_, total)| total))?;
        }
        StatusCode::OK => {
            // A server that cannot resume sends the whole file.
            part.reset()?;
            check_size(url, size, content_length(&response))?;
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            part.reset()?;
            return Err(Failed::network(url, "the server refused to resume"));
        }
        _ => return Err(refused(Refusal::of(url, &response))),
    }
    let mut body = response.into_body();
    while let Some(bytes) = client.part(url, &mut body).await? {
        let got = part.len + bytes.len() as u64;
        check_size(url, size, (got > size).then_some(got))?;
        part.write(&bytes)?;
    }
    match part.len == size {
        true => Ok(()),
        false => Err(Failed::network(url, "the connection ended early")),
    }
}

/// Checks the size that a server announces, if it does.
fn check_size(url: &str, expected: u64, announced: Option<u64>) -> Result<(), Error> {
    match announced {
        Some(got) if got != expected => Err(Error::Size {
            url: url.to_owned(),
            expected,
            got,
        }),
        _ => Ok(()),
    }
}

fn content_length(response: &Response<Incoming>) -> Option<u64> {
    let value = response.headers().get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.parse().ok()
}

/// Reads `bytes 5-9/10` as the start and the total, (5, 10).
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()?))
}

/// A file that is arriving.
struct Part<'a> {
    file: &'a RemoteFile,
    path: PathBuf,
    out: File,
    /// The bytes that have arrived.
    len: u64,
    /// The hash of these bytes.
    hasher: Hasher,
    meter: &'a Meter<'a>,
}

impl<'a> Part<'a> {
    /// Opens what an earlier download left, or begins.
    fn open(blob: &Path, file: &'a RemoteFile, meter: &'a Meter<'a>) -> Result<Self, Error> {
        let mut path = blob.as_os_str().to_owned();
        path.push(".incomplete");
        let path = PathBuf::from(path);
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&path);
        let mut part = Self {
            file,
            out: out.map_err(|e| io_error(&path, e))?,
            len: 0,
            hasher: Hasher::new(&file.checksum, file.size),
            meter,
            path,
        };
        part.take_over().map_err(|e| io_error(&part.path, e))?;
        if part.len > file.size {
            part.reset()?;
        }
        Ok(part)
    }

    /// Hashes the bytes that are there.
    fn take_over(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = self.out.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            self.hasher.update(&buffer[..count]);
            self.len += count as u64;
            self.meter.add_bytes(count as u64);
        }
    }

    /// Throws away what has arrived.
    fn reset(&mut self) -> Result<(), Error> {
        self.out.set_len(0).map_err(|e| io_error(&self.path, e))?;
        self.meter.remove_bytes(self.len);
        self.len = 0;
        self.hasher = Hasher::new(&self.file.checksum, self.file.size);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull {
                folder: self.path.parent().unwrap_or(&self.path).to_owned(),
                needed: self.file.size - self.len,
                free: 0,
            },
            _ => io_error(&self.path, e),
        })?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.meter.add_bytes(bytes.len() as u64);
        Ok(())
    }

    /// Makes the complete file the blob. If its hash is wrong, throws it away and returns why.
    fn finish(&mut self, blob: &Path) -> Result<Option<Error>, Error> {
        let got = self.hasher.clone().finish();
        if got != self.file.checksum.as_str() {
            self.reset()?;
            return Ok(Some(Error::Checksum {
                file: self.file.path.clone(),
                expected: self.file.checksum.as_str().to_owned(),
                got,
            }));
        }
        // Synced before the file gets the name that says that it is complete.
        self.out.sync_all().map_err(|e| io_error(&self.path, e))?;
        fs::rename(&self.path, blob).map_err(|e| io_error(blob, e))?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_parsed() {
        let check = |text: &str, expected| {
            let value = text.parse().unwrap();
            let headers = HeaderMap::from_iter([(header::CONTENT_RANGE, value)]);
            assert_eq!(content_range(&headers), expected, "{text}");
        };
        check("bytes 5-9/10", Some((5, 10)));
        for wrong in [
            "",
            "bytes",
            "bytes */10",
            "bytes 5-9/*",
            "5-9/10",
            "bytes -1-9/10",
        ] {
            check(wrong, None);
        }
    }
}
