// Go: hamba/avro or linkedin/goavro, as the first argument says.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	hamba "github.com/hamba/avro/v2"
	"github.com/linkedin/goavro/v2"
)

func quoted(text string) string {
	var out strings.Builder
	for _, each := range []byte(text) {
		if each >= '0' && each <= '9' || each >= 'A' && each <= 'Z' || each >= 'a' && each <= 'z' {
			out.WriteByte(each)
		} else {
			fmt.Fprintf(&out, "%%%02x", each)
		}
	}
	return "'" + out.String() + "'"
}

// Both libraries name the branch of a union by its type, its logical type if it has one, or its full name.
func branchName(schema hamba.Schema) string {
	if reference, ok := schema.(*hamba.RefSchema); ok {
		schema = reference.Schema()
	}
	if named, ok := schema.(hamba.NamedSchema); ok {
		return named.FullName()
	}
	return string(schema.Type())
}

func inUnion(types []hamba.Schema, value any) string {
	wrapped, ok := value.(map[string]any)
	for _, each := range types {
		if value == nil {
			return "null"
		}
		name := branchName(each)
		for key, inner := range wrapped {
			if len(wrapped) == 1 && (key == name || strings.HasPrefix(key, name+".")) {
				return text(each, inner)
			}
		}
	}
	if _, isText := value.(string); !ok && len(types) > 2 {
		for _, each := range types { // a number or a text
			if each.Type() != hamba.Null && (each.Type() == hamba.String) == isText {
				return text(each, value)
			}
		}
	}
	for _, each := range types {
		if each.Type() != hamba.Null {
			return text(each, value)
		}
	}
	panic(fmt.Sprintf("%v is of no branch", value))
}

func logical(schema hamba.Schema) hamba.LogicalSchema {
	if with, ok := schema.(hamba.LogicalTypeSchema); ok {
		return with.Logical()
	}
	return nil
}

func ofTime(schema hamba.Schema, value time.Time) string {
	switch logical(schema).Type() {
	case hamba.Date:
		return fmt.Sprint(value.Unix() / 86400)
	case hamba.TimestampMillis:
		return fmt.Sprint(value.UnixMilli())
	default:
		return fmt.Sprint(value.UnixMicro())
	}
}

func text(schema hamba.Schema, value any) string {
	if reference, ok := schema.(*hamba.RefSchema); ok {
		schema = reference.Schema()
	}
	switch schema := schema.(type) {
	case *hamba.UnionSchema:
		return inUnion(schema.Types(), value)
	case *hamba.RecordSchema:
		var fields []string
		for _, field := range schema.Fields() {
			inner, given := value.(map[string]any)[field.Name()]
			if !given {
				panic(field.Name() + " is missing")
			}
			fields = append(fields, quoted(field.Name())+"="+text(field.Type(), inner))
		}
		return "[" + strings.Join(fields, ",") + "]"
	case *hamba.ArraySchema:
		var items []string
		for _, item := range value.([]any) {
			items = append(items, text(schema.Items(), item))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	switch value := value.(type) {
	case string:
		return quoted(value)
	case []byte:
		return "x" + hex.EncodeToString(value)
	case float32:
		return fmt.Sprintf("f%016x", math.Float64bits(float64(value)))
	case float64:
		return fmt.Sprintf("f%016x", math.Float64bits(value))
	case *big.Rat:
		scale := big.NewInt(int64(logical(schema).(*hamba.DecimalLogicalSchema).Scale()))
		power := new(big.Int).Exp(big.NewInt(10), scale, nil)
		return "d" + new(big.Rat).Mul(value, new(big.Rat).SetInt(power)).RatString()
	case time.Time:
		return ofTime(schema, value)
	case time.Duration:
		if logical(schema).Type() == hamba.TimeMillis {
			return fmt.Sprint(value.Milliseconds())
		}
		return fmt.Sprint(value.Microseconds())
	default: // null, true, false, 1
		return fmt.Sprint(value)
	}
}

func withHamba(schema hamba.Schema, _ string) (func([]byte) (any, error), error) {
	return func(data []byte) (value any, err error) {
		err = hamba.Unmarshal(schema, data, &value)
		return value, err
	}, nil
}

func withGoavro(_ hamba.Schema, written string) (func([]byte) (any, error), error) {
	codec, err := goavro.NewCodec(written)
	return func(data []byte) (any, error) {
		value, rest, err := codec.NativeFromBinary(data)
		if err == nil && len(rest) > 0 {
			err = errors.New("bytes are left over")
		}
		return value, err
	}, err
}

func main() {
	library := map[string]func(hamba.Schema, string) (func([]byte) (any, error), error){
		"hamba": withHamba, "goavro": withGoavro,
	}[os.Args[1]]
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for number := 0; ; number++ {
		path := filepath.Join(os.Args[2], fmt.Sprint(number))
		written, err := os.ReadFile(path + ".avsc")
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		schema := check(hamba.ParseWithCache(string(written), "", &hamba.SchemaCache{}))
		by, resolved := schema, schema
		if newest, err := os.ReadFile(path + ".newest"); err == nil {
			by = check(hamba.ParseWithCache(string(newest), "", &hamba.SchemaCache{}))
			resolved = check(hamba.NewSchemaCompatibility().Resolve(by, schema))
		}
		read := check(library(resolved, string(written)))
		records := check(os.ReadFile(path + ".records"))
		for len(records) > 0 {
			end := 4 + binary.BigEndian.Uint32(records)
			value := check(read(records[4:end]))
			fmt.Fprintf(out, "%d %s\n", number, text(by, value))
			records = records[end:]
		}
	}
}

func check[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
