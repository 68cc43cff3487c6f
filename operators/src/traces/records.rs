//! Framing: a source of bytes into records with their place, one JSON value each.
//!
//! A source is lines (JSONL: one value a line), JSON lists, or objects over several lines.
//!
//! Of lists: it begins with `[`, and what follows is an object, another list or `]`. After a list another may follow, as
//! in dumps that were appended to each other; whatever else follows is read as lines.
//!
//! Of objects over several lines, as programs write them for people: its first line is a `{` alone and a key follows. Such
//! an object ends with a line that begins with `}`, or before one that begins with `{`; a line outside of one is a record.
//!
//! A byte-order mark at the start is passed over, line ends may be LF or CR LF.
//!
//! No byte that is not blank is passed over unseen: an empty item of a list is an empty record, and so is the end of a
//! source in the middle of a list. Records longer than a limit are framed but not kept in full.

use std::io::{BufRead, BufReader, ErrorKind, Read};

use super::gzip::{Members, Trailing};

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

impl Record {
    /// Adds bytes, of which no more are kept than the limit allows.
    fn extend(&mut self, bytes: &[u8], limit: usize) {
        let room = limit.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len() as u64;
    }

    /// Takes off the carriage return of a line end.
    fn trim_end(&mut self) {
        if !self.at_end && self.bytes.len() as u64 == self.length && self.bytes.last() == Some(&b'\r') {
            self.bytes.pop();
            self.length -= 1;
        }
    }
}

/// Reads records from a source.
pub struct Records {
    source: BufReader<Source>,
    offset: u64,
    line: u64,
    framing: Option<Framing>,
    /// A line that was read and does not belong to the object before it.
    next: Option<Record>,
    limit: usize,
    /// Lines that held nothing but white space.
    pub blank: u64,
    /// Room for the bytes of a record.
    spare: Vec<u8>,
}

/// More room than this is not kept for the next record.
const ROOM: usize = 4 << 20;

enum Source {
    Plain(Box<dyn Read + Send>),
    Gzip(Members),
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(source) => source.read(into),
            Self::Gzip(members) => members.read(into),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Lines,
    /// Objects over several lines.
    Objects,
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
        let source = if gzip { Source::Gzip(Members::new(source, limit)) } else { Source::Plain(source) };
        Self {
            source: BufReader::with_capacity(1 << 16, source),
            offset: 0,
            line: 1,
            framing: None,
            next: None,
            limit,
            blank: 0,
            spare: Vec::new(),
        }
    }

    /// Takes back the bytes of a record that is done with, as room for another.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        if bytes.capacity() <= ROOM {
            self.spare = bytes;
        }
    }

    fn room(&mut self) -> Vec<u8> {
        let mut room = std::mem::take(&mut self.spare);
        room.clear();
        room
    }

    /// Bytes read so far, after decompression.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The physical line that is read next.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Bytes behind the last member of a gzip source; known when there is no further record.
    pub fn take_trailing(&mut self) -> Option<Trailing> {
        match self.source.get_mut() {
            Source::Plain(_) => None,
            Source::Gzip(members) => members.take_trailing(),
        }
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
            Some(Framing::Objects) => self.next_object(),
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
        let (first, next) = (solid.next(), solid.next());
        if let (Some((at, b'{')), Some((key, b'"'))) = (first, next)
            && head[at..key].contains(&b'\n')
        {
            return Ok(Framing::Objects);
        }
        let Some((at, b'[')) = first else { return Ok(Framing::Lines) };
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
            let Some((mut record, blank)) = self.any_line()? else { return Ok(None) };
            if blank {
                self.blank += 1;
                self.spare = record.bytes;
                continue;
            }
            record.trim_end();
            return Ok(Some(record));
        }
    }

    /// The next line, without its line feed, and whether it is blank.
    fn any_line(&mut self) -> std::io::Result<Option<(Record, bool)>> {
        let bytes = self.room();
        let mut record = Record { line: self.line, offset: self.offset, bytes, length: 0, at_end: false };
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
            record.extend(part, self.limit);
            ended = end.is_some();
            let used = part.len() + usize::from(ended);
            self.consume(used);
        }
        self.line += u64::from(ended);
        record.at_end = !ended;
        Ok((ended || record.length > 0).then_some((record, blank)))
    }

    /// The next object over several lines.
    fn next_object(&mut self) -> std::io::Result<Option<Record>> {
        let mut object = match self.next.take() {
            Some(line) => line,
            None => loop {
                match self.any_line()? {
                    None => return Ok(None),
                    Some((_, true)) => self.blank += 1,
                    Some((line, false)) => break line,
                }
            },
        };
        let mut open = object.bytes.trim_ascii_end() == b"{";
        while open && !object.at_end {
            let Some((line, _)) = self.any_line()? else {
                object.at_end = true;
                break;
            };
            if line.bytes.first() == Some(&b'{') {
                self.next = Some(line);
                break;
            }
            open = line.bytes.first() != Some(&b'}');
            object.extend(b"\n", self.limit);
            object.extend(&line.bytes, self.limit);
            object.length += line.length - line.bytes.len() as u64;
            object.at_end = line.at_end;
            self.spare = line.bytes;
        }
        object.trim_end();
        Ok(Some(object))
    }

    /// The next value of a list: bytes up to a comma or the closing bracket outside strings and inner brackets. `None`
    /// at the bracket; at the end of the source an empty record comes first, for the bracket that is missing.
    fn next_item(&mut self) -> std::io::Result<Option<Record>> {
        let next = self.skip_blank()?;
        let bytes = self.room();
        let mut item = Record { line: self.line, offset: self.offset, bytes, length: 0, at_end: false };
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

pub(super) fn fill<R: Read>(source: &mut BufReader<R>) -> std::io::Result<&[u8]> {
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
    fn objects_over_several_lines() {
        let texts =
            |text: &str| -> Vec<String> { records(text.as_bytes()).into_iter().map(|(_, _, item, _)| item).collect() };
        let (one, two) = ("{\n  \"a\": {\n    \"b\": \"}\"\n  }\n}", "{\r\n \"a\": [\r\n\r\n {\r\n } ]\r\n}");
        assert_eq!(texts(&format!("{one}\n\n{two}\r\n{{\"c\": 1}}\nx\n{one}")), [one, two, "{\"c\": 1}", "x", one]);
        // One without end costs itself alone; at the end of the source it is told so.
        let cut = "{\n  \"a\": \"";
        assert_eq!(texts(&format!("{cut}\n{one}")), [cut, one]);
        assert_eq!(records(format!("{one}\n{cut}").as_bytes())[1], (6, one.len() as u64 + 1, cut.to_owned(), true));
        // A brace alone among lines of one value each costs itself alone.
        assert_eq!(texts("{\n{\"a\": 1}\n{\"a\": 2}\n"), ["{", "{\"a\": 1}", "{\"a\": 2}"]);
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
}
