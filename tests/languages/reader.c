/* C: libavro, which knows no logical types. */

#include <avro.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int failed, const char *what, int number) {
    if (failed) {
        fprintf(stderr, "%s of schema %d: %s\n", what, number, avro_strerror());
        exit(1);
    }
}

static char *content(const char *folder, int number, const char *suffix, size_t *size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.%s", folder, number, suffix);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (data == NULL || fread(data, 1, *size, file) != *size) {
        exit(1);
    }
    fclose(file);
    return data;
}

static void print_quoted(const char *text, size_t size) {
    putchar('\'');
    for (size_t i = 0; i < size; i++) {
        unsigned char each = (unsigned char)text[i];
        if ((each >= '0' && each <= '9') || (each >= 'A' && each <= 'Z') || (each >= 'a' && each <= 'z')) {
            putchar(each);
        } else {
            printf("%%%02x", each);
        }
    }
    putchar('\'');
}

static void print_real(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    printf("f%016" PRIx64, bits);
}

static void print(avro_value_t *value) {
    avro_value_t part;
    const void *data;
    const char *text;
    size_t size;
    int number;
    int32_t integer;
    int64_t long_integer;
    float real;
    double long_real;
    switch (avro_value_get_type(value)) {
    case AVRO_UNION:
        avro_value_get_current_branch(value, &part);
        print(&part);
        break;
    case AVRO_RECORD:
    case AVRO_ARRAY:
        avro_value_get_size(value, &size);
        putchar('[');
        for (size_t i = 0; i < size; i++) {
            avro_value_get_by_index(value, i, &part, &text);
            if (i > 0) {
                putchar(',');
            }
            if (avro_value_get_type(value) == AVRO_RECORD) {
                print_quoted(text, strlen(text));
                putchar('=');
            }
            print(&part);
        }
        putchar(']');
        break;
    case AVRO_STRING:
        avro_value_get_string(value, &text, &size);
        print_quoted(text, size - 1); /* it counts the NUL at the end */
        break;
    case AVRO_BYTES:
        avro_value_get_bytes(value, &data, &size);
        putchar('x');
        for (size_t i = 0; i < size; i++) {
            printf("%02x", ((const unsigned char *)data)[i]);
        }
        break;
    case AVRO_INT32:
        avro_value_get_int(value, &integer);
        printf("%" PRId32, integer);
        break;
    case AVRO_INT64:
        avro_value_get_long(value, &long_integer);
        printf("%" PRId64, long_integer);
        break;
    case AVRO_FLOAT:
        avro_value_get_float(value, &real);
        print_real(real);
        break;
    case AVRO_DOUBLE:
        avro_value_get_double(value, &long_real);
        print_real(long_real);
        break;
    case AVRO_BOOLEAN:
        avro_value_get_boolean(value, &number);
        fputs(number ? "true" : "false", stdout);
        break;
    case AVRO_NULL:
        fputs("null", stdout);
        break;
    default:
        fputs("a type that no schema of Millrace has\n", stderr);
        exit(1);
    }
}

int main(int count, char **arguments) {
    char *text;
    size_t size;
    for (int number = 0; count == 2 && (text = content(arguments[1], number, "avsc", &size)) != NULL; number++) {
        avro_schema_t schema;
        check(avro_schema_from_json_length(text, size, &schema), "the text", number);
        char *records = content(arguments[1], number, "records", &size);
        avro_value_iface_t *class = avro_generic_class_from_schema(schema);
        for (char *record = records; record < records + size;) {
            unsigned char *head = (unsigned char *)record;
            int64_t length = (int64_t)head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3];
            avro_reader_t reader = avro_reader_memory(record + 4, length);
            avro_value_t value;
            avro_generic_value_new(class, &value);
            check(avro_value_read(reader, &value), "a record", number);
            printf("%d ", number);
            print(&value);
            putchar('\n');
            avro_value_decref(&value);
            avro_reader_free(reader);
            record += 4 + length;
        }
        avro_value_iface_decref(class);
        avro_schema_decref(schema);
        free(records);
        free(text);
    }
    return 0;
}
