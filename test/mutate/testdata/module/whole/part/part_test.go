package part_test

import (
	"testing"

	"example.test/module/whole/part"
)

func TestNext(*testing.T) { part.Next(1) }
