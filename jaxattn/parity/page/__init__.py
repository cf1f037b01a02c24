"""The page that `ParityReport.save_html` writes."""

from .writing import write_page as write_page
