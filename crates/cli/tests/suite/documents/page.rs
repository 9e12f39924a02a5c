//! The `console` blocks of a page, and the comparison of an answer with what a block shows.

use regex::Regex;

use super::session::Answer;

/// A fenced block that is to be run.
pub(super) struct Block {
    pub(super) commands: Vec<Command>,
}

/// A typed line and what the page shows after it.
pub(super) struct Command {
    /// Line of the page, counted from 1.
    pub(super) line: usize,
    pub(super) typed: String,
    shown: Vec<String>,
}

/// The blocks of a page that are to be run.
pub(super) fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let lines: Vec<&str> = page.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        if lines[at].trim_end() != "```console" {
            at += 1;
            continue;
        }
        let start = at + 1;
        let len = lines[start..].iter().position(|l| l.trim_end() == "```");
        let end = start + len.ok_or_else(|| format!("the block at line {at} does not end"))?;
        let above = lines[..at].last().copied().unwrap_or_default();
        if !above.starts_with("<!-- not run: ") {
            blocks.push(block(&lines[start..end], start + 1)?);
        }
        at = end + 1;
    }
    Ok(blocks)
}

fn block(lines: &[&str], first: usize) -> Result<Block, String> {
    let mut commands: Vec<Command> = Vec::new();
    let mut continued = false;
    for (n, line) in lines.iter().enumerate() {
        let typed = line.strip_prefix("$ ");
        match (typed, commands.last_mut()) {
            (None, Some(last)) if continued => {
                last.typed.truncate(last.typed.len() - 1);
                last.typed.push_str(line.trim_start());
            }
            (Some(typed), _) => {
                commands.push(Command { line: first + n, typed: typed.to_owned(), shown: Vec::new() });
            }
            (None, Some(last)) => last.shown.push((*line).to_owned()),
            (None, None) => return Err(format!("line {}: a `console` block begins with `$ `", first + n)),
        }
        continued = (typed.is_some() || continued) && line.ends_with('\\');
    }
    Ok(Block { commands })
}

impl Command {
    /// Whether the answer is what the page shows; where it is not, both.
    pub(super) fn judge(&self, answer: &Answer) -> Result<(), String> {
        let failed = self.shown.iter().any(|line| line.starts_with("error: "));
        if answer.success == failed {
            let how = if failed { "succeeds where the page shows an error" } else { "fails" };
            return Err(format!("{how}:\n{}", answer.text));
        }
        // A command without an answer is one whose answer is not the page's subject.
        let patterns: Vec<Pattern> = self.shown.iter().map(|line| Pattern::of(line)).collect();
        let lines: Vec<String> = answer.text.lines().map(collapsed).collect();
        if self.shown.is_empty() || all_match(&patterns, &lines) {
            return Ok(());
        }
        Err(format!("the page shows\n{}\n---- and it prints\n{}", self.shown.join("\n"), answer.text))
    }
}

/// Columns of tables are as wide as their numbers.
fn collapsed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A shown line.
enum Pattern {
    Lines,
    One(Regex),
}

impl Pattern {
    fn of(line: &str) -> Pattern {
        let line = collapsed(line);
        if line == "…" {
            return Pattern::Lines;
        }
        let numbers = Regex::new(r"~[0-9][0-9.]*(e-?[0-9]+)?").unwrap();
        let (mut pattern, mut from) = ("^".to_owned(), 0);
        for number in numbers.find_iter(&line) {
            pattern += &any_text(&line[from..number.start()]);
            pattern += r"[0-9.]+(e-?[0-9]+)?";
            from = number.end();
        }
        pattern += &any_text(&line[from..]);
        Pattern::One(Regex::new(&(pattern + "$")).unwrap())
    }
}

fn any_text(text: &str) -> String {
    text.split('…').map(regex::escape).collect::<Vec<_>>().join(".*")
}

fn all_match(patterns: &[Pattern], lines: &[String]) -> bool {
    match patterns.split_first() {
        None => lines.is_empty(),
        Some((Pattern::Lines, rest)) => (0..=lines.len()).any(|n| all_match(rest, &lines[n..])),
        Some((Pattern::One(one), rest)) => {
            lines.split_first().is_some_and(|(line, lines)| one.is_match(line) && all_match(rest, lines))
        }
    }
}

#[test]
fn answers_are_compared_line_by_line_with_marks() {
    let page = "a\n```console\n$ one \\\n  two\nx = ~1.5 ms, […]\n…\nlast\n$ three\nerror: no\n```\n\
                <!-- not run: it takes a network -->\n```console\n$ four\n```\n";
    let blocks = blocks(page).unwrap();
    let [Block { commands }] = &blocks[..] else { panic!("one block") };
    let [one, three] = &commands[..] else { panic!("two commands") };
    assert_eq!((one.line, &*one.typed, &*three.typed), (3, "one two", "three"));
    let answer = |success, text: &str| Answer { success, text: text.to_owned() };
    assert!(one.judge(&answer(true, "x = 0.25   ms, [1, 2]\nmore\nmore\nlast\n")).is_ok());
    assert!(one.judge(&answer(true, "x = 2e-5 ms, []\nlast\n")).is_ok());
    for wrong in ["x = a ms, []\nlast\n", "x = 1 ms, []\n", "x = 1 ms, []\nlast\nand more\n"] {
        assert!(one.judge(&answer(true, wrong)).is_err(), "{wrong}");
    }
    assert!(one.judge(&answer(false, "x = 1 ms, []\nlast\n")).is_err());
    assert!(three.judge(&answer(false, "error: no\n")).is_ok());
    assert!(three.judge(&answer(true, "error: no\n")).is_err());
}
