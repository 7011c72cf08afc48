"""What the commands that look at a store have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from deferred_django.backends.base import Backend
from deferred_django.console.health import Unhealthy
from deferred_django.console.output import Output
from deferred_django.exceptions import DeadTasksLockTimeout
from deferred_django.registry import get_backend


class StoreCommand(BaseCommand):
    """A command on the configured store: prints through ``out`` and ``err``, fails with a sentence.

    Exit codes: 1 if something was not found or the store could not be read or written, 2 for a
    wrong use or a refusal. Each is a ``CommandError``, so that ``call_command`` raises it.
    """

    # The person on call needs these commands most when the rest of the project does not load.
    requires_system_checks = []

    out: Output
    err: Output

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command; see :meth:`run`."""
        force_color = bool(options.get("force_color"))
        self.out = Output(self.stdout, self.style, force_color=force_color)
        self.err = Output(self.stderr, self.style, force_color=force_color)
        try:
            backend = get_backend()
            if not backend.keeps_tasks:
                self.err.line("The backend None keeps no tasks: there is no store to look at.")
            self.run(backend, options)
            self.out.flush()
        except Unhealthy:  # its lines are escaped
            raise
        except CommandError as error:  # it may name ids that hold anything
            raise CommandError(self.err.escape(str(error)), returncode=error.returncode) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        except DeadTasksLockTimeout as error:
            raise CommandError(
                f"The dead-tasks store is in use by another process: {error} "
                "Nothing was changed; try again."
            ) from error
        except PermissionError as error:
            raise CommandError(
                f"{error}. Run this as the user of the workers, or share the files with "
                'DEFERRED["FILE_PERMISSIONS"].'
            ) from error
        except OSError as error:
            raise CommandError(str(error)) from error
        finally:
            with contextlib.suppress(OSError):  # the first failure is the one to report
                self.out.flush()

    def run(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """The command itself."""
        raise NotImplementedError
