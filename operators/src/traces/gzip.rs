//! Gzip: every member of a source, one after the other, and what follows the last of them.
//!
//! A source may hold several members, as when files were appended to each other. Bytes behind them that begin no further
//! member are no error of the text before: they are kept, for whoever reads to say so.

use std::io::{BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

/// What follows the last member.
#[derive(Debug, PartialEq, Eq)]
pub struct Trailing {
    /// Offset of its first byte in the source, before decompression.
    pub offset: u64,
    /// Its bytes, as many as the limit allows.
    pub bytes: Vec<u8>,
    /// How many bytes it has.
    pub length: u64,
}

/// The text of all members.
pub struct Members {
    state: State,
    limit: usize,
    trailing: Option<Trailing>,
}

enum State {
    /// Before the first member.
    Begin(Counted),
    Member(Box<GzDecoder<Counted>>),
    End,
}

/// The first byte of every member.
const MAGIC: u8 = 0x1f;

impl Members {
    /// The members of `source`. Of what follows them at most `limit` bytes are kept.
    pub fn new(source: Box<dyn Read + Send>, limit: usize) -> Self {
        let source = Counted { source: BufReader::with_capacity(1 << 16, source), offset: 0 };
        Self { state: State::Begin(source), limit, trailing: None }
    }

    /// What follows the last member; known when all has been read.
    pub fn take_trailing(&mut self) -> Option<Trailing> {
        self.trailing.take()
    }
}

impl Read for Members {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let (mut source, first) = match std::mem::replace(&mut self.state, State::End) {
                State::End => return Ok(0),
                State::Begin(source) => (source, true),
                State::Member(mut member) => match member.read(into) {
                    Ok(0) if !into.is_empty() => (member.into_inner(), false),
                    result => {
                        self.state = State::Member(member);
                        return result;
                    }
                },
            };
            match source.peek()? {
                None => return Ok(0),
                // A source that does not even begin with a member is no gzip; the decoder says so.
                Some(byte) if first || byte == MAGIC => self.state = State::Member(Box::new(GzDecoder::new(source))),
                Some(_) => self.trailing = Some(source.rest(self.limit)?),
            }
        }
    }
}

/// A source that knows how much of it was used.
struct Counted {
    source: BufReader<Box<dyn Read + Send>>,
    offset: u64,
}

impl Counted {
    fn peek(&mut self) -> std::io::Result<Option<u8>> {
        super::records::fill(&mut self.source).map(|bytes| bytes.first().copied())
    }

    fn rest(&mut self, limit: usize) -> std::io::Result<Trailing> {
        let mut trailing = Trailing { offset: self.offset, bytes: Vec::new(), length: 0 };
        loop {
            let part = super::records::fill(&mut self.source)?;
            if part.is_empty() {
                return Ok(trailing);
            }
            let length = part.len();
            let room = limit.saturating_sub(trailing.bytes.len());
            trailing.bytes.extend_from_slice(&part[..length.min(room)]);
            trailing.length += length as u64;
            self.consume(length);
        }
    }
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(into)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl BufRead for Counted {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.source.fill_buf()
    }
    fn consume(&mut self, used: usize) {
        self.source.consume(used);
        self.offset += used as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, ErrorKind, Write};

    use super::*;

    fn member(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> (std::io::Result<String>, Option<Trailing>) {
        let mut members = Members::new(Box::new(Cursor::new(bytes.to_vec())), 4);
        let mut text = String::new();
        let result = members.read_to_string(&mut text).map(|_| text);
        (result, members.take_trailing())
    }

    #[test]
    fn all_members_are_read_and_nothing_is_an_empty_text() {
        let two = [member("one\n"), member(""), member("two\n")].concat();
        let (text, trailing) = read(&two);
        assert_eq!((text.unwrap().as_str(), trailing), ("one\ntwo\n", None));
        assert_eq!(read(b"").0.unwrap(), "");
    }

    #[test]
    fn what_follows_the_last_member_is_kept_with_its_place() {
        let first = member("one\n");
        let (text, trailing) = read(&[first.as_slice(), b"garbage"].concat());
        assert_eq!(text.unwrap(), "one\n");
        assert_eq!(trailing, Some(Trailing { offset: first.len() as u64, bytes: b"garb".to_vec(), length: 7 }));
    }

    #[test]
    fn a_member_that_ends_too_early_is_an_error() {
        let whole = member("one\n");
        for end in 1..whole.len() {
            assert_eq!(read(&whole[..end]).0.unwrap_err().kind(), ErrorKind::UnexpectedEof, "{end} bytes");
        }
        assert!(read(b"{\"a\": 1}").0.is_err(), "no gzip at all");
    }
}
