// Package report shows the result of a comparison: as a table in the terminal, as CSV
// and JSON for other programs, and as one HTML file that needs nothing else.
//
// All of them show the same figures. Runs that differ in nothing but their seed are
// one cell: the median over the seeds, with the least and the most.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/tacitmq/tacit/compare"
)

// JSON writes the report as it is, with a line's end after it.
func JSON(w io.Writer, r *compare.Report) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	return nil
}

// Read reads what JSON has written. Fields that it does not know are left out.
func Read(rd io.Reader) (*compare.Report, error) {
	var r compare.Report
	if err := json.NewDecoder(rd).Decode(&r); err != nil {
		return nil, fmt.Errorf("read the report from JSON: %w", err)
	}
	return &r, nil
}
