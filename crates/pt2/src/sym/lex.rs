//! Splits the text of an expression into tokens that borrow from it.

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Name(&'a str),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Mark(&'static str),
    End,
}

/// Longest first, so that `**` is not read as `*` twice.
const MARKS: &[&str] = &[
    "**", "//", "<=", ">=", "==", "!=", "(", ")", "[", "]", ",", "=", "+", "-", "*", "/", "%", "<", ">", "&",
    "|", "~",
];

/// The token at the start of `text` and what follows it.
pub(super) fn next(text: &str) -> Result<(Token<'_>, &str), String> {
    let text = text.trim_start();
    let Some(first) = text.chars().next() else { return Ok((Token::End, text)) };
    if first.is_ascii_digit() || (first == '.' && text[1..].starts_with(|c: char| c.is_ascii_digit())) {
        return number(text);
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let end =
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(text.len());
        return Ok((Token::Name(&text[..end]), &text[end..]));
    }
    if first == '\'' || first == '"' {
        let body = &text[1..];
        let end = body.find(first).ok_or("a quoted name does not end")?;
        return Ok((Token::Text(&body[..end]), &body[end + 1..]));
    }
    match MARKS.iter().find(|mark| text.starts_with(**mark)) {
        Some(mark) => Ok((Token::Mark(mark), &text[mark.len()..])),
        None => Err(format!("unexpected `{first}`")),
    }
}

fn number(text: &str) -> Result<(Token<'_>, &str), String> {
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let mut end = digits(text);
    let mut float = false;
    if text[end..].starts_with('.') {
        float = true;
        end += 1 + digits(&text[end + 1..]);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = digits(&text[end + 1 + sign..]);
        if exponent > 0 {
            float = true;
            end += 1 + sign + exponent;
        }
    }
    let (number, rest) = text.split_at(end);
    let bad = || format!("`{}` does not fit 64 bits", crate::error::shorten(number));
    let token = match float {
        true => Token::Float(number.parse().map_err(|_| bad())?),
        false => Token::Int(number.parse().map_err(|_| bad())?),
    };
    Ok((token, rest))
}
