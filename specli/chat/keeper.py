"""Keeps a conversation saved while it goes on: one file, one writer, and a name that may change."""

from __future__ import annotations

from specli.chat.locks import Lock
from specli.chat.sessions import Session, Shelf
from specli.errors import SessionError


class Keeper:
    """Writes the session of one conversation at a time. `saving`: whether it does so unasked. `name`: where,
    None as long as nothing was written. `named`: somebody chose that name."""

    def __init__(self, shelf: Shelf, saving: bool = True) -> None:
        self.shelf = shelf
        self.saving = saving
        self.name: str | None = None
        self.named = False
        self._lock: Lock | None = None

    def save(self, session: Session) -> None:
        """Write it, under a new name if it has none. Raises SpecliError where that cannot be done."""
        if self.name is None:
            self.name, self._lock = self.shelf.lock_fresh()
            self.named = False
        self.shelf.write(self.name, session)

    def save_as(self, name: str, session: Session) -> None:
        """Write it under `name` from now on. An automatic name goes, a chosen one stays as it was.

        Raises SessionError for a name that is taken.
        """
        if name == self.name:
            self.named = True
            self.save(session)
            return
        lock = self._grasp(name)
        if lock is None or self.shelf.exists(name):
            if lock is not None:
                lock.release()
            raise SessionError(f"there is a session {name} already; /load {name} goes on with that one")
        try:
            self.shelf.write(name, session)
        except BaseException:
            lock.release()
            raise
        if self.name is not None and not self.named:
            self.shelf.remove(self.name)
        self.leave()
        self.name, self.named, self._lock, self.saving = name, True, lock, True

    def discard(self) -> None:
        """Delete what was written: there is nothing in it any more."""
        if self.name is not None:
            self.shelf.remove(self.name)
        self.leave()

    def resume(self, name: str) -> Session:
        """The session `name`, to be written on there; under another name if some other program does so
        already, or not at all if nothing is saved: then `name` is None afterwards. Raises SessionError if it
        cannot be read."""
        session = self.shelf.read(name)
        if name == self.name:
            return session
        lock = self._grasp(name) if self.saving else None
        self.leave()
        if lock is not None:
            try:
                session = self.shelf.read(name)  # as its last writer left it
            except BaseException:
                lock.release()
                raise
            self.name, self.named, self._lock = name, session.named, lock
        return session

    def leave(self) -> None:
        """What comes next is another conversation."""
        if self._lock is not None:
            self._lock.release()
        self.name, self.named, self._lock = None, False, None

    def _grasp(self, name: str) -> Lock | None:
        try:
            return self.shelf.lock(name)
        except BlockingIOError:
            return None
