//! Framing: a source of bytes into records with their place, one JSON value each.
//!
//! A source is either lines (JSONL: one value a line) or one JSON list (its first byte that is not blank is `[`). A
//! record is never larger in memory than itself; lines of any length work. A byte-order mark at the start is passed
//! over, line ends may be LF or CR LF.

use std::io::{BufRead, BufReader, ErrorKind, Read};

/// One record of a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// Physical line on which it starts, from 1.
    pub line: u64,
    /// Offset of its first byte.
    pub offset: u64,
    /// Its bytes, without line end and separators.
    pub bytes: Vec<u8>,
    /// Whether the source ended before its line end or closing bracket.
    pub at_end: bool,
}

/// Reads records from a source.
pub struct Records {
    source: BufReader<Box<dyn Read + Send>>,
    offset: u64,
    line: u64,
    framing: Option<Framing>,
    /// Lines that held nothing but white space.
    pub blank: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Lines,
    List,
    Done,
}

const BYTE_ORDER_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];

impl Records {
    /// Records of `source`; with `gzip` it is decompressed first, however many members it has.
    pub fn new(source: Box<dyn Read + Send>, gzip: bool) -> Self {
        let source: Box<dyn Read + Send> =
            if gzip { Box::new(flate2::read::MultiGzDecoder::new(source)) } else { source };
        Self { source: BufReader::with_capacity(1 << 16, source), offset: 0, line: 1, framing: None, blank: 0 }
    }

    /// Bytes read so far, after decompression.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record, or `None` at the end of the source.
    pub fn next_record(&mut self) -> std::io::Result<Option<Record>> {
        let framing = match self.framing {
            Some(framing) => framing,
            None => self.detect()?,
        };
        match framing {
            Framing::Lines => self.next_line(),
            Framing::List => self.next_item(),
            Framing::Done => Ok(None),
        }
    }

    fn detect(&mut self) -> std::io::Result<Framing> {
        let mut head = self.fill()?;
        if head.starts_with(BYTE_ORDER_MARK) {
            self.consume(BYTE_ORDER_MARK.len());
            head = self.fill()?;
        }
        // A list may be preceded by blank lines; so few that they stand in the first buffer.
        let first = head.iter().position(|byte| !byte.is_ascii_whitespace());
        let framing = match first.map(|at| (at, head[at])) {
            Some((at, b'[')) => {
                let lines = head[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
                self.consume(at + 1);
                self.line += lines;
                Framing::List
            }
            _ => Framing::Lines,
        };
        self.framing = Some(framing);
        Ok(framing)
    }

    fn next_line(&mut self) -> std::io::Result<Option<Record>> {
        loop {
            let (line, offset) = (self.line, self.offset);
            let mut bytes = Vec::new();
            let read = read_until(&mut self.source, b'\n', &mut bytes)?;
            if read == 0 {
                return Ok(None);
            }
            self.offset += read as u64;
            let ended = bytes.last() == Some(&b'\n');
            if ended {
                self.line += 1;
                bytes.pop();
                if bytes.last() == Some(&b'\r') {
                    bytes.pop();
                }
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                self.blank += 1;
                continue;
            }
            return Ok(Some(Record { line, offset, bytes, at_end: !ended }));
        }
    }

    /// The next value of a list: bytes up to a comma or the closing bracket outside strings and inner brackets.
    fn next_item(&mut self) -> std::io::Result<Option<Record>> {
        let mut item = Record { line: self.line, offset: self.offset, bytes: Vec::new(), at_end: false };
        let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
        loop {
            let buffer = fill(&mut self.source)?;
            if buffer.is_empty() {
                self.framing = Some(Framing::Done);
                item.at_end = true;
                return Ok(finish(item));
            }
            let mut used = 0;
            let mut end = None;
            for &byte in buffer {
                used += 1;
                if byte == b'\n' {
                    self.line += 1;
                }
                if item.bytes.is_empty() && byte.is_ascii_whitespace() {
                    item.line = self.line;
                    item.offset = self.offset + used as u64;
                    continue;
                }
                if depth == 0 && !in_string && matches!(byte, b',' | b']') {
                    end = Some(byte);
                    break;
                }
                item.bytes.push(byte);
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_string => escaped = true,
                    b'"' => in_string = !in_string,
                    b'{' | b'[' if !in_string => depth += 1,
                    b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            self.consume(used);
            match end {
                Some(b']') => {
                    self.framing = Some(Framing::Done);
                    return Ok(finish(item));
                }
                Some(_) => return Ok(finish(item)),
                None => {}
            }
        }
    }

    fn fill(&mut self) -> std::io::Result<&[u8]> {
        fill(&mut self.source)
    }

    fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.offset += bytes as u64;
    }
}

fn finish(mut item: Record) -> Option<Record> {
    while item.bytes.last().is_some_and(u8::is_ascii_whitespace) {
        item.bytes.pop();
    }
    if item.bytes.is_empty() { None } else { Some(item) }
}

fn fill(source: &mut BufReader<Box<dyn Read + Send>>) -> std::io::Result<&[u8]> {
    while let Err(error) = source.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    source.fill_buf()
}

fn read_until(source: &mut impl BufRead, byte: u8, into: &mut Vec<u8>) -> std::io::Result<usize> {
    source.read_until(byte, into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Vec<(u64, u64, String, bool)> {
        let mut reader = Records::new(Box::new(std::io::Cursor::new(text.to_vec())), false);
        let mut all = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let start = record.offset as usize;
            assert_eq!(&text[start..start + record.bytes.len()], &record.bytes[..]);
            all.push((record.line, record.offset, String::from_utf8(record.bytes).unwrap(), record.at_end));
        }
        all
    }

    #[test]
    fn lines_with_mark_carriage_returns_and_blanks() {
        let text = b"\xEF\xBB\xBF{\"a\":1}\r\n\r\n  \n{\"a\":2}\n{\"a\":";
        let expected = [
            (1, 3, "{\"a\":1}".to_owned(), false),
            (4, 17, "{\"a\":2}".to_owned(), false),
            (5, 25, "{\"a\":".to_owned(), true),
        ];
        assert_eq!(records(text), expected);
    }

    #[test]
    fn a_list_with_brackets_in_strings() {
        let text = b"\n[\n  {\"a\": \"],[\\\"\"},\n  [1, 2] ,{}]\n";
        let expected = [
            (3, 5, "{\"a\": \"],[\\\"\"}".to_owned(), false),
            (4, 23, "[1, 2]".to_owned(), false),
            (4, 31, "{}".to_owned(), false),
        ];
        assert_eq!(records(text), expected);
        assert_eq!(records(b"[]"), []);
        assert_eq!(records(b""), []);
    }

    #[test]
    fn a_torn_list_gives_its_last_item_as_torn() {
        let found = records(b"[{\"a\":1}, {\"b\"");
        assert_eq!(found[1], (1, 10, "{\"b\"".to_owned(), true));
    }

    #[test]
    fn a_long_line_is_one_record() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(300_000));
        let found = records(format!("{long}\n{{}}\n").as_bytes());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].2, long);
    }

    #[test]
    fn all_members_of_a_gzip_file_are_read() {
        use std::io::Write;
        let mut bytes = Vec::new();
        for part in ["{\"a\":1}\n{\"a\":2}\n", "{\"a\":3}\n"] {
            let mut encoder = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        let mut reader = Records::new(Box::new(std::io::Cursor::new(bytes)), true);
        let mut count = 0;
        while reader.next_record().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
    }
}
