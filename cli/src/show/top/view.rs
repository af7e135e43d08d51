//! What `top` shows at a moment, and what a key changes.

use clap::ValueEnum as _;
use console::Key;
use onelock::{Error, FencingToken};

use super::columns::{drawn, fit, head};
use super::rows::{Row, Sort, arranged};

/// What a key asks for beyond the view itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    Evict(String, FencingToken),
}

/// What the keys mean now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Input {
    #[default]
    Browse,
    Filter,
    /// Whether to evict this holder.
    Confirm(Row, FencingToken),
}

#[derive(Default)]
pub(super) struct View {
    /// The store's address.
    pub(super) store: String,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// What happened last.
    pub(super) message: String,
    /// Why nothing new is seen.
    away: Option<String>,
    /// How many names are in use.
    names: usize,
    all: Vec<Row>,
    rows: Vec<Row>,
    keys: Input,
    selected: usize,
    /// The first row on the screen.
    top: usize,
}

impl View {
    pub(super) fn new(store: String, sort: Sort, filter: String) -> Self {
        Self { store, sort, filter, away: Some("looking…".into()), ..Self::default() }
    }

    /// Takes in what was seen. The selected name stays selected.
    pub(super) fn see(&mut self, names: usize, all: Vec<Row>) {
        (self.names, self.all, self.away) = (names, all, None);
        self.arrange();
    }

    /// Nothing new was seen.
    pub(super) fn away(&mut self, error: &Error) {
        self.away = Some(format!("the store is away, this is old: {error}"));
    }

    fn arrange(&mut self) {
        let name = self.rows.get(self.selected).map(|row| row.name.clone());
        self.rows = arranged(self.all.clone(), self.sort, &self.filter);
        let again = name.and_then(|name| self.rows.iter().position(|row| row.name == name));
        self.selected = again.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
    }

    pub(super) fn press(&mut self, key: &Key, page: usize) -> Action {
        if *key == Key::CtrlC {
            return Action::Quit;
        }
        match std::mem::replace(&mut self.keys, Input::Browse) {
            Input::Browse => return self.browse(key, page),
            Input::Filter => self.type_filter(key),
            Input::Confirm(row, token) => {
                if *key == Key::Char('y') {
                    return Action::Evict(row.name, token);
                }
                self.message = "nothing was evicted".into();
            }
        }
        Action::Nothing
    }

    fn browse(&mut self, key: &Key, page: usize) -> Action {
        self.message.clear();
        let last = self.rows.len().saturating_sub(1);
        match key {
            Key::Char('q') | Key::Escape => return Action::Quit,
            Key::ArrowUp | Key::Char('k') => self.selected = self.selected.saturating_sub(1),
            Key::ArrowDown | Key::Char('j') => self.selected = (self.selected + 1).min(last),
            Key::PageUp => self.selected = self.selected.saturating_sub(page),
            Key::PageDown => self.selected = (self.selected + page).min(last),
            Key::Home => self.selected = 0,
            Key::End => self.selected = last,
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Char('/') => self.keys = Input::Filter,
            Key::Char('e') => self.ask(),
            _ => {}
        }
        Action::Nothing
    }

    fn type_filter(&mut self, key: &Key) {
        match key {
            Key::Enter => return,
            Key::Escape => {
                self.filter.clear();
                return self.arrange();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) => self.filter.push(*c),
            _ => {}
        }
        self.keys = Input::Filter;
        self.arrange();
    }

    fn ask(&mut self) {
        match self.rows.get(self.selected) {
            Some(row @ Row { token: Some(token), .. }) => self.keys = Input::Confirm(row.clone(), *token),
            _ => self.message = "nobody who has a token holds this name".into(),
        }
    }

    /// The screen, a line each, and which of them is selected.
    pub(super) fn draw(&mut self, width: usize, height: usize) -> (Vec<String>, Option<usize>) {
        let page = height.saturating_sub(3);
        self.top = self.top.min(self.selected).max((self.selected + 1).saturating_sub(page));
        let held = self.all.iter().filter(|row| row.holders > 0).count();
        let waiters: usize = self.all.iter().map(|row| row.waiters).sum();
        let seen =
            if self.all.len() < self.names { format!("{} of ", self.all.len()) } else { String::new() };
        let title = format!(
            "onelock top  {seen}{} names, {held} held, {waiters} waiters  {}",
            self.names, self.store
        );
        let mut lines = vec![fit(&title, width), head(width)];
        lines.extend(self.rows.iter().skip(self.top).take(page).map(|row| drawn(row, width)));
        let selected = (!self.rows.is_empty() && page > 0).then_some(2 + self.selected - self.top);
        lines.resize(page + 2, fit("", width));
        lines.push(fit(&self.foot(), width));
        (lines, selected)
    }

    fn foot(&self) -> String {
        let filter =
            if self.filter.is_empty() { String::new() } else { format!("  filter: {}", self.filter) };
        match &self.keys {
            Input::Filter => format!("filter: {}_  (Enter keeps it, Esc clears it)", self.filter),
            Input::Confirm(Row { name, holder, .. }, token) => {
                format!("evict token {token} ({holder}) from {name}? y/n")
            }
            Input::Browse if self.away.is_some() => self.away.clone().unwrap_or_default(),
            Input::Browse if !self.message.is_empty() => self.message.clone(),
            Input::Browse => format!("s sort: {}{filter}  / filter  e evict  q quit", self.sort.word()),
        }
    }
}

/// How the screen shows and changes it.
impl Sort {
    fn next(self) -> Self {
        let mut from_here = Self::value_variants().iter().cycle().skip_while(|sort| **sort != self);
        from_here.nth(1).copied().unwrap_or(self)
    }

    fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let row = |number: usize| Row {
            name: format!("name/{number:04}"),
            token: FencingToken::new(i64::try_from(number).unwrap() + 1).ok(),
            holder: "me".into(),
            holders: 1,
            age: None,
            waiters: 0,
            oldest: None,
        };
        let mut view = View::new("redis://h".into(), Sort::Name, String::new());
        view.see(1_000, (0..1_000).map(row).collect());
        view
    }

    fn press(view: &mut View, keys: &[Key]) -> Action {
        keys.iter().fold(Action::Nothing, |_, key| view.press(key, 21))
    }

    #[test]
    fn the_selected_row_is_on_the_screen_and_stays_selected() {
        let mut view = view();
        for (key, name) in [(Key::End, "name/0999"), (Key::ArrowUp, "name/0998"), (Key::Home, "name/0000")] {
            press(&mut view, &[key]);
            let (lines, selected) = view.draw(80, 24);
            assert_eq!(lines.len(), 24);
            assert!(lines[selected.unwrap()].contains(name), "{lines:?}");
        }
        press(&mut view, &[Key::PageDown]);
        let rows = view.all.split_off(10);
        view.see(990, rows);
        let (lines, selected) = view.draw(80, 24);
        assert!(lines[selected.unwrap()].contains("name/0021") && lines[0].contains("990 names, 990 held"));
    }

    #[test]
    fn nothing_is_evicted_without_a_yes() {
        let mut view = view();
        assert_eq!(press(&mut view, &[Key::ArrowDown, Key::Char('e')]), Action::Nothing);
        assert!(view.draw(80, 24).0[23].starts_with("evict token 2 (me) from name/0001? y/n"));
        assert_eq!(press(&mut view, &[Key::Enter]), Action::Nothing);
        assert_eq!(press(&mut view, &[Key::Char('y')]), Action::Nothing, "the question was answered");
        let wish = press(&mut view, &[Key::Char('e'), Key::Char('y')]);
        assert_eq!(wish, Action::Evict("name/0001".into(), FencingToken::new(2).unwrap()));
    }

    #[test]
    fn a_filter_is_typed_and_cleared() {
        let mut view = view();
        press(&mut view, &[Key::Char('/'), Key::Char('7'), Key::Char('q')]);
        assert!(view.rows.is_empty() && view.draw(80, 24).1.is_none());
        press(&mut view, &[Key::Backspace, Key::Char('7'), Key::Enter]);
        assert!(view.rows.iter().all(|row| row.name.contains("77")) && !view.rows.is_empty());
        press(&mut view, &[Key::Char('/'), Key::Escape]);
        assert_eq!(view.rows.len(), 1_000);
        assert_eq!(press(&mut view, &[Key::Char('q')]), Action::Quit);
    }
}
