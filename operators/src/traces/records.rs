//! Framing: a source of bytes into records with their place, one JSON value each.
//!
//! A source is either lines (JSONL: one value a line) or JSON lists: it begins with `[`, and what follows is an object,
//! another list or `]`. After a list another may follow, as in dumps that were appended to each other; whatever else
//! follows is read as lines. A byte-order mark at the start is passed over, line ends may be LF or CR LF.
//!
//! No byte that is not blank is passed over unseen: an empty item of a list is an empty record, and so is the end of a
//! source in the middle of a list. Records longer than a limit are framed but not kept in full.

use std::io::{BufRead, BufReader, ErrorKind, Read};

/// One record of a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// Physical line on which it starts, from 1.
    pub line: u64,
    /// Offset of its first byte.
    pub offset: u64,
    /// Its bytes, without line end and separators; of a record over the limit, as many as the limit allows.
    pub bytes: Vec<u8>,
    /// How many bytes it has.
    pub length: u64,
    /// Whether the source ended before its line end or closing bracket.
    pub at_end: bool,
}

/// Reads records from a source.
pub struct Records {
    source: BufReader<Box<dyn Read + Send>>,
    offset: u64,
    line: u64,
    framing: Option<Framing>,
    limit: usize,
    /// Lines that held nothing but white space.
    pub blank: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Lines,
    /// Inside a list.
    List,
    /// After a list was closed.
    Between,
}

const BYTE_ORDER_MARK: &[u8] = &[0xEF, 0xBB, 0xBF];

impl Records {
    /// Records of `source`; with `gzip` it is decompressed first, however many members it has. Of a record longer than
    /// `limit` only that many bytes are kept.
    pub fn new(source: Box<dyn Read + Send>, gzip: bool, limit: usize) -> Self {
        let source: Box<dyn Read + Send> =
            if gzip { Box::new(flate2::read::MultiGzDecoder::new(source)) } else { source };
        Self { source: BufReader::with_capacity(1 << 16, source), offset: 0, line: 1, framing: None, limit, blank: 0 }
    }

    /// Bytes read so far, after decompression.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record, or `None` at the end of the source.
    pub fn next_record(&mut self) -> std::io::Result<Option<Record>> {
        if self.framing.is_none() {
            self.framing = Some(self.detect()?);
        }
        if self.framing == Some(Framing::Between) {
            self.framing = Some(match self.skip_blank()? {
                Some(b'[') => {
                    self.consume(1);
                    Framing::List
                }
                _ => Framing::Lines,
            });
        }
        match self.framing {
            Some(Framing::List) => match self.next_item()? {
                Some(record) => Ok(Some(record)),
                // The list is closed, or the source is at its end.
                None if self.framing == Some(Framing::Between) => self.next_record(),
                None => Ok(None),
            },
            _ => self.next_line(),
        }
    }

    fn detect(&mut self) -> std::io::Result<Framing> {
        let mut head = fill(&mut self.source)?;
        if head.starts_with(BYTE_ORDER_MARK) {
            self.consume(BYTE_ORDER_MARK.len());
            head = fill(&mut self.source)?;
        }
        // A list may be preceded by blank lines; so few that they stand in the first buffer.
        let mut solid = head.iter().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace());
        let (Some((at, b'[')), next) = (solid.next(), solid.next()) else { return Ok(Framing::Lines) };
        if !matches!(next, None | Some((_, b'{' | b'[' | b']'))) {
            return Ok(Framing::Lines);
        }
        let lines = head[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.consume(at + 1);
        self.line += lines;
        Ok(Framing::List)
    }

    /// Passes over blank bytes; the byte that follows, which is not consumed.
    fn skip_blank(&mut self) -> std::io::Result<Option<u8>> {
        loop {
            let buffer = fill(&mut self.source)?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let blank = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let next = buffer.get(blank).copied();
            self.line += buffer[..blank].iter().filter(|byte| **byte == b'\n').count() as u64;
            self.consume(blank);
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    fn next_line(&mut self) -> std::io::Result<Option<Record>> {
        loop {
            let mut record =
                Record { line: self.line, offset: self.offset, bytes: Vec::new(), length: 0, at_end: false };
            let mut ended = false;
            let mut blank = true;
            while !ended {
                let buffer = fill(&mut self.source)?;
                if buffer.is_empty() {
                    break;
                }
                let end = memchr::memchr(b'\n', buffer);
                let part = &buffer[..end.unwrap_or(buffer.len())];
                blank &= part.iter().all(u8::is_ascii_whitespace);
                record.length += part.len() as u64;
                let room = self.limit.saturating_sub(record.bytes.len());
                record.bytes.extend_from_slice(&part[..part.len().min(room)]);
                ended = end.is_some();
                let used = part.len() + usize::from(ended);
                self.consume(used);
            }
            self.line += u64::from(ended);
            if !ended && record.length == 0 {
                return Ok(None);
            }
            if blank {
                self.blank += 1;
                continue;
            }
            if ended && record.bytes.len() as u64 == record.length && record.bytes.last() == Some(&b'\r') {
                record.bytes.pop();
                record.length -= 1;
            }
            record.at_end = !ended;
            return Ok(Some(record));
        }
    }

    /// The next value of a list: bytes up to a comma or the closing bracket outside strings and inner brackets. `None`
    /// at the bracket; at the end of the source an empty record comes first, for the bracket that is missing.
    fn next_item(&mut self) -> std::io::Result<Option<Record>> {
        let next = self.skip_blank()?;
        let mut item = Record { line: self.line, offset: self.offset, bytes: Vec::new(), length: 0, at_end: false };
        match next {
            None => {
                self.framing = Some(Framing::Lines);
                item.at_end = true;
                return Ok(Some(item));
            }
            // Right after the opening bracket, or after a comma too many: nothing is lost.
            Some(b']') => {
                self.consume(1);
                self.framing = Some(Framing::Between);
                return Ok(None);
            }
            Some(_) => {}
        }
        let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
        let mut blank = 0;
        loop {
            let buffer = fill(&mut self.source)?;
            if buffer.is_empty() {
                // The next call finds the end again and says that the bracket is missing.
                item.at_end = true;
                break;
            }
            let mut used = 0;
            let mut end = None;
            for &byte in buffer {
                if depth == 0 && !in_string && matches!(byte, b',' | b']') {
                    end = Some(byte);
                    break;
                }
                used += 1;
                self.line += u64::from(byte == b'\n');
                item.length += 1;
                blank = if byte.is_ascii_whitespace() { blank + 1 } else { 0 };
                if item.bytes.len() < self.limit {
                    item.bytes.push(byte);
                }
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
            if let Some(end) = end {
                // The bracket is left for the next call.
                if end == b',' {
                    self.consume(1);
                }
                break;
            }
        }
        if item.bytes.len() as u64 == item.length {
            item.bytes.truncate(item.bytes.len() - blank);
            item.length -= blank as u64;
        }
        Ok(Some(item))
    }

    fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.offset += bytes as u64;
    }
}

fn fill(source: &mut BufReader<Box<dyn Read + Send>>) -> std::io::Result<&[u8]> {
    while let Err(error) = source.fill_buf() {
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    source.fill_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Vec<(u64, u64, String, bool)> {
        let mut reader = Records::new(Box::new(std::io::Cursor::new(text.to_vec())), false, usize::MAX);
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
    fn a_torn_list_says_so() {
        let torn = |text: &str| -> Vec<(String, bool)> {
            records(text.as_bytes()).into_iter().map(|(_, _, item, at_end)| (item, at_end)).collect()
        };
        let item = |text: &str| (text.to_owned(), false);
        let missing = (String::new(), true);
        assert_eq!(torn(r#"[{"a":1}, {"b""#), [item(r#"{"a":1}"#), (r#"{"b""#.to_owned(), true), missing.clone()]);
        assert_eq!(torn(r#"[{"a":1},"#), [item(r#"{"a":1}"#), missing.clone()]);
        assert_eq!(torn(r#"[{"a":1}"#), [(r#"{"a":1}"#.to_owned(), true), missing.clone()]);
        assert_eq!(torn("["), [missing]);
    }

    #[test]
    fn what_follows_a_list_is_not_lost() {
        let texts =
            |text: &str| -> Vec<String> { records(text.as_bytes()).into_iter().map(|(_, _, item, _)| item).collect() };
        assert_eq!(texts(r#"[{"a":1},,{"a":2},]"#), [r#"{"a":1}"#, "", r#"{"a":2}"#]);
        assert_eq!(texts("[{}]\n\n[{},[]]\n"), ["{}", "{}", "[]"]);
        assert_eq!(texts("[{}]\n{\"a\":1}\nx\n"), ["{}", "{\"a\":1}", "x"]);
        assert_eq!(texts("[INFO] start\n{\"a\":1}\n{\"a\":2}"), ["[INFO] start", "{\"a\":1}", "{\"a\":2}"]);
    }

    #[test]
    fn of_a_record_over_the_limit_the_beginning_is_kept() {
        for text in ["{\"a\":\"12345678\"}\n{}\n", "[{\"a\":\"12345678\"},{}]"] {
            let mut reader = Records::new(Box::new(std::io::Cursor::new(text.as_bytes().to_vec())), false, 5);
            let long = reader.next_record().unwrap().unwrap();
            assert_eq!((long.bytes.as_slice(), long.length), (&b"{\"a\":"[..], 16));
            assert_eq!(reader.next_record().unwrap().unwrap().bytes, b"{}");
            assert_eq!(reader.next_record().unwrap(), None);
        }
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
        let mut reader = Records::new(Box::new(std::io::Cursor::new(bytes)), true, usize::MAX);
        let mut count = 0;
        while reader.next_record().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
    }
}
